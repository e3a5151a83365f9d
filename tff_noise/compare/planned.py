"""What the papers' tables name and this version does not have yet.

A grid may contain it: its cells are shown as not available. Anything else that is unknown is a
mistake in the grid. A name is deleted here when it works.
"""

METHODS = frozenset({
    'arfl', 'dividemix', 'fednoro', 'fedrn', 'jointopt', 'lc', 'trevision',
})

# Values of flags that exist, by flag.
VALUES = {'method': METHODS}
