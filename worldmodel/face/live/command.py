"""`worldmodel swap-demo`: a page that swaps faces live, and the server behind it for programs."""

from fractions import Fraction
from pathlib import Path

import torch

from worldmodel.errors import UserError
from worldmodel.face.live.references import Reference, allowed
from worldmodel.options import check_threads
from worldmodel.serve.access import check_binding


def swap_demo(
    target: str | None = None,
    reference: Path | None = None,
    consent: Path | None = None,
    references: Path | None = None,
    methods: tuple[str, ...] = ("poisson", "copy-paste"),
    faces: int = 1,
    size: int | None = None,
    every: int = 8,
    rate: float = 25.0,
    occlusion: bool = True,
    threads: int = 1,
    max_streams: int = 1,
    port: int = 8000,
    host: str = "127.0.0.1",
    token: str | None = None,
    open_browser: bool = False,
) -> int:
    """Swap faces live in the browser: its camera or a video on the left, the swap on the right.

    Example: worldmodel swap-demo --reference me.jpg --consent me.json

    TARGET, if given, is a picture source of this machine (a video file, which is repeated; a folder of images, shown at
    --rate; an rtmp:// or http:// URL; camera:0) beside the camera of the browser. --references FOLDER holds pictures
    NAME.jpg, each with its consent NAME.json: clients choose among them, and bring none. --methods: between which the
    page switches; copy-paste, poisson, folders of trained swaps. --max-streams: how many pages at once; each has a
    stream of its own. Label and watermark are always on. Any --host that is not loopback needs a --token.
    """
    from worldmodel.face.command import default_networks
    from worldmodel.face.live.live import Live, Plan
    from worldmodel.face.live.server import serve_live
    from worldmodel.face.live.swapping import Settings

    check_threads(threads)
    if not 0.1 <= rate <= 1000:
        raise UserError(f"--rate must be in [0.1, 1000], not {rate}")
    check_binding(host, token)
    settings = Settings(faces=faces, every=every, occlusion=occlusion, threads=threads)
    plan = Plan(
        source=target, rate=Fraction(rate).limit_denominator(1001), size=size, streams=max_streams, settings=settings
    )
    plan.check()
    people = chosen(reference, consent, references)
    torch.set_num_threads(threads)
    return serve_live(Live(people, methods, default_networks(), plan), host, port, token, open_browser)


def chosen(reference: Path | None, consent: Path | None, references: Path | None) -> tuple[Reference, ...]:
    """The allow-list: one reference, or those of a folder or file. A UserError for none, both, or no consent."""
    if references is not None:
        if reference is not None or consent is not None:
            raise UserError("give either --references FOLDER, or --reference FILE with --consent FILE")
        return allowed(references)
    if reference is None:
        raise UserError(
            "swap-demo needs --reference FILE with --consent FILE, or --references FOLDER: whose face is swapped in"
        )
    from worldmodel.face.consent import check_consent

    check_consent(consent, reference)
    assert consent is not None
    return (Reference(reference.stem, reference, consent),)
