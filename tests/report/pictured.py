"""Scenes to draw, and what pictures say, for tests."""

import matplotlib
import numpy as np
from matplotlib.backends import backend_agg

from tff_noise.data import scene as scene_lib


def scene(client_of, noisy, clean, nominal, notes=()):
  """A scene: of each example its client, label and true class; of each client its nominal rate."""
  nominal = np.asarray(nominal, float)
  return scene_lib.Scene(
      np.asarray(client_of, np.int32), np.asarray(noisy, np.int32), np.asarray(clean, np.int32),
      nominal, nominal > 0, tuple(notes),
  )


def large(examples, clients, classes, seed=0):
  """A scene of random labels, of which two clients in three have 40 % drawn anew."""
  rng = np.random.default_rng(seed)
  client_of = rng.integers(0, clients, examples)
  client_of[:clients] = np.arange(clients)
  clean = rng.integers(0, classes, examples)
  noisy = np.where(rng.random(examples) < 0.4, rng.integers(0, classes, examples), clean)
  return scene(client_of, noisy, clean, np.where(np.arange(clients) % 3, 0.4, 0))


def names(classes):
  """Names of classes."""
  return [f'a class named {i}' for i in range(classes)]


def texts(figure):
  """All that is written in a figure."""
  return [t.get_text() for t in figure.findobj(matplotlib.text.Text) if t.get_text()]


def labels(axis):
  """What is written at an axis's ticks."""
  return [t.get_text() for t in axis.get_ticklabels()]


def rendered(figure):
  """The figure laid out, by what tells how large its parts are."""
  canvas = backend_agg.FigureCanvasAgg(figure)
  canvas.draw()
  return canvas.get_renderer()


def overlaps(figure, *written):
  """Which of the texts that a `written()` gives once the figure is laid out lie over each other."""
  renderer = rendered(figure)
  groups = [
      [t.get_window_extent(renderer) for t in texts() if t.get_visible() and t.get_text()]
      for texts in written
  ]
  return [
      (i, j)
      for boxes in groups
      for i, a in enumerate(boxes)
      for j, b in enumerate(boxes[i + 1:], i + 1)
      if min(a.x1, b.x1) > max(a.x0, b.x0) and min(a.y1, b.y1) > max(a.y0, b.y0)
  ]
