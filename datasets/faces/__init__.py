"""Real faces: followed through videos and kept as aligned pieces, made into training clips, and listed for evaluation.

`pieces` is the folder that the rest reads, `gather` fills it from videos, `reverse` adds swapped inputs to it, `clips`
makes training clips of it, `occlusion` puts something before faces, `manifest` lists what a swap is evaluated on.
"""
