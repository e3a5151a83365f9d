"""The methods, by name: one line each, and every federated optimizer as a method of its own."""

from tff_noise.methods import clipfl
from tff_noise.methods import fedcorr
from tff_noise.methods import feddpcont
from tff_noise.methods import plain

METHODS = {
    **plain.METHODS,
    **{
        m.name: m
        for m in (
            clipfl.METHOD,
            fedcorr.METHOD,
            feddpcont.METHOD,
        )
    },
}
