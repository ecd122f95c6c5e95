"""Streaming video face swapping: everything around the generator, and the protocol that a generator fulfils.

packages, tfjs          networks and clips that arrive in registry packages; nothing of them is in the repository
networks                detector, landmarks, identity, expression (torch); recogniser (onnxruntime, for evaluation)
alignment, one_euro     where a face is, as a similarity; its causal filter
track                   faces over time, as a value
region, colour, occlude crop, mask and paste back
generator               the protocol: K aligned crops in, K out, state as a value; two baselines
reading, writing        video, audio and timestamps
consent, label, sign    responsible use
pipeline, command       the stream and its command line
live                    the same as a page and a server

Pictures are uint8 [H, W, 3] RGB. Places are (x, y) in pixels, the centre of the first pixel at (0, 0).
"""
