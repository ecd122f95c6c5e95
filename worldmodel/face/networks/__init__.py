"""Small networks for faces as torch modules, with weights from the package that `packages.NETWORKS` names (MIT).

The architectures are those of face-api (Muehler): a tiny YOLO v2 with separable convolutions, densely added blocks for
landmarks and expression, and dlib's ResNet for identity (King). All take RGB in 0..255 and can be differentiated.
"""
