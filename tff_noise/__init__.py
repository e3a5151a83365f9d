"""Federated learning from noisy labels, on TensorFlow Federated."""

from tff_noise.api import train as train
