"""Frechet distances between populations of features, as training losses and as plain metrics.

moments.py    mean, covariance and count in fp64; partial ones merge
distance.py   the distance in its three modes, differentiable
population.py populations larger than a batch: feature queue, averaged moments
ranks.py      all processes as one population
loss.py       several distances as one normalised loss; per-clip centring
features.py   feature maps of latents: statistics, encoders behind the decoder
mark.py       by what a feature map is known beside its name
bank.py       a reference population on disk
"""
