"""What this machine can do beyond the base install, asked by name: `check("egl")`.

`worldmodel doctor` prints these checks and the tests skip by them (`@pytest.mark.needs("egl")`), so that both give the
same reason. Every question that could crash or print runs in a Python process of its own.
"""

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from worldmodel.face.packages import CAR_CLIP, COMMAND, FACE_CLIPS, NETWORKS, RECOGNISER, Package, cache, root

SIM = "`bash setup/install.sh all` in a checkout"
"""How to get the simulators and all other extras."""

State = Literal["ok", "missing", "broken"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: `missing` is not installed or not for this machine, `broken` is installed and does not work.

    detail: what was found, one line. advice: what to do about it, one line, empty if `ok`.
    """

    name: str
    state: State
    detail: str
    advice: str = ""

    @property
    def reason(self) -> str:
        """One line for a skipped test: name, state, detail and advice."""
        return f"{self.name} {self.state}: {self.detail}" + (f" ({self.advice})" if self.advice else "")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe said: whether it exited with 0, and its last line (of stderr if it failed)."""

    ok: bool
    line: str


def probe(code: str, timeout: float = 60.0) -> Answer:
    """Runs Python code in a process and an empty folder of its own; a crash or a hang is an answer too."""
    environment = os.environ | headless()
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-c", code],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            return Answer(False, f"no answer within {timeout:g} s")
    lines = [line.strip() for line in (done.stderr if done.returncode else done.stdout).splitlines() if line.strip()]
    if done.returncode < 0:
        return Answer(False, f"killed by signal {-done.returncode}")
    ok = done.returncode == 0
    return Answer(ok, lines[-1] if lines else "" if ok else f"exit code {done.returncode}")


def headless() -> dict[str, str]:
    """Environment variables that simulators read when imported, for a machine without a screen; set ones are kept."""
    wanted = {"SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    if sys.platform == "linux":
        wanted["MUJOCO_GL"] = "egl"
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def installed(package: str) -> bool:
    """Whether a top-level package can be found; does not import it."""
    return importlib.util.find_spec(package) is not None


def chromium_path() -> str | None:
    """Path of a Chromium or Chrome executable, None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


def _by_probe(name: str, packages: tuple[str, ...], code: str, install: str, repair: str) -> Check:
    """missing if a package cannot be found, else what the probe answers."""
    absent = [package for package in packages if not installed(package)]
    if absent:
        return Check(name, "missing", f"{', '.join(absent)} not installed", install)
    answer = probe(code)
    return Check(name, "ok", answer.line) if answer.ok else Check(name, "broken", answer.line, repair)


def _chromium() -> Check:
    if not installed("playwright"):
        return Check("chromium", "missing", "playwright not installed", SIM)
    path = chromium_path()
    if path is None:
        return Check("chromium", "missing", "no Chromium executable on PATH", "Debian: apt-get install chromium")
    code = f"import subprocess; subprocess.run([{path!r}, '--no-sandbox', '--version'], check=True)"
    return _by_probe("chromium", (), code, "", f"run `{path} --version` to see why")


_RENDER = """
import mujoco, os
context = mujoco.GLContext(16, 16)
context.make_current()
from OpenGL import GL
print(GL.glGetString(GL.GL_RENDERER).decode(), flush=True)
os._exit(0)
"""


def _egl() -> Check:
    repair = "Debian: apt-get install libegl1 libgl1"
    return _by_probe("egl", ("mujoco",), _RENDER, SIM, repair)


def _metaworld() -> Check:
    code = "import metaworld; print(len(metaworld.ALL_V3_ENVIRONMENTS), 'tasks')"
    found = _by_probe("metaworld", ("metaworld",), code, SIM, "reinstall metaworld, mujoco")
    drawing = check("egl")
    if found.state == "ok" and drawing.state != "ok":
        return Check("metaworld", "broken", f"cannot draw: {drawing.detail}", drawing.advice)
    return found


def _pusht() -> Check:
    code = "import gym_pusht, cv2, pygame; print('pygame', pygame.__version__)"
    return _by_probe("pusht", ("gym_pusht", "cv2", "pygame"), code, SIM, "reinstall gym-pusht, opencv and pygame-ce")


_DOOM = """
import vizdoom
game = vizdoom.DoomGame()
game.set_doom_scenario_path(vizdoom.scenarios_path + '/basic.wad')
game.set_window_visible(False)
game.init()
game.new_episode()
print('started', vizdoom.__version__)
game.close()
"""


def _vizdoom() -> Check:
    return _by_probe("vizdoom", ("vizdoom",), _DOOM, "pip install vizdoom", "reinstall vizdoom")


def _decord() -> Check:
    instead = "none needed: videos are read with PyAV instead"
    return _by_probe("decord", ("decord",), "import decord; print(decord.__version__)", instead, instead)


def _codec(name: str, encoder: str, advice: str) -> Check:
    code = f"""
import io, av, numpy
file = io.BytesIO()
with av.open(file, "w", format="mp4") as out:
    stream = out.add_stream({encoder!r}, rate=10)
    stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
    for i in range(8):
        picture = numpy.full((64, 64, 3), 20 * i, numpy.uint8)
        out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
    out.mux(stream.encode())
file.seek(0)
with av.open(file) as back:
    frames = sum(1 for _ in back.decode(video=0))
    decoder = back.streams.video[0].codec_context.name
assert frames == 8, f"wrote 8 frames, read {{frames}}"
print({encoder!r}, "writes,", decoder, "reads")
"""
    return _by_probe(name, ("av",), code, "pip install av", advice)


def _h264() -> Check:
    return _codec("h264", "libx264", "reinstall av from its wheel: recording and datasets need it")


def _av1() -> Check:
    return _codec("av1", "libsvtav1", "none needed: datasets are written as h264; foreign AV1 videos cannot be read")


_TORCH = """
import importlib.util, json, pathlib
import torch
vision = pathlib.Path(importlib.util.find_spec("torchvision").origin).parent
torch.ops.load_library(next(vision.glob("_C*")))  # importing all of torchvision takes seconds
torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
from torch.nn.attention import SDPBackend, sdpa_kernel
x = torch.randn(1, 2, 16, 32, device="cuda" if cuda else "cpu", dtype=torch.float16 if cuda else torch.float32)
sdpa = []
for name in ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"):
    try:
        with sdpa_kernel(getattr(SDPBackend, name)):
            torch.nn.functional.scaled_dot_product_attention(x, x, x)
        sdpa.append(name.removesuffix("_ATTENTION").lower())
    except RuntimeError:
        continue
print(json.dumps({"cuda": cuda, "mps": torch.backends.mps.is_available(), "sdpa": sdpa}))
"""


def once[T](ask: Callable[[], T]) -> Callable[[], T]:
    """Asks on the first call only; threads that call meanwhile wait for it (functools.cache asks again)."""
    lock, answers = threading.Lock(), list[T]()

    @functools.wraps(ask)
    def answer() -> T:
        with lock:
            if not answers:
                answers.append(ask())
        return answers[0]

    return answer


@once
def torch_answer() -> Answer:
    """Whether torch runs and fits torchvision; its line is JSON: cuda (device names), mps (bool), sdpa (backends)."""
    absent = [package for package in ("torch", "torchvision") if not installed(package)]
    return Answer(False, f"{', '.join(absent)} not installed") if absent else probe(_TORCH)


def _cuda() -> Check:
    answer = torch_answer()
    devices = json.loads(answer.line)["cuda"] if answer.ok else []
    if devices:
        return Check("cuda", "ok", ", ".join(devices))
    detail = "torch sees no CUDA device" if answer.ok else answer.line
    return Check("cuda", "missing", detail, "none needed: everything runs on the CPU, slower")


def _xformers() -> Check:
    if not installed("xformers"):
        return Check("xformers", "missing", "not installed", f"with an NVIDIA GPU: {SIM}")
    if check("cuda").state != "ok":
        detail = "installed, but n/a without a CUDA device: it has no CPU operator"
        return Check("xformers", "missing", detail, "none needed: attention runs through SDPA")
    code = """
import torch
from xformers.ops import memory_efficient_attention
x = torch.randn(1, 8, 1, 64, device="cuda", dtype=torch.float16)
print("on", torch.cuda.get_device_name(), tuple(memory_efficient_attention(x, x, x).shape))
"""
    return _by_probe("xformers", (), code, "", "install the xformers release that was built for this torch")


def _triton() -> Check:
    code = "import triton; print(triton.__version__)"
    return _by_probe("triton", ("triton",), code, f"Linux: {SIM}", "reinstall triton")


def _compile() -> Check:
    """What torch.compile needs: a C++ compiler, here and beside Triton on a GPU."""
    if not installed("torch"):
        return Check("compile", "missing", "torch not installed", "see `torch works`")
    names = (os.environ.get("CXX") or "g++", "g++", "clang++")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        return Check(
            "compile", "missing", "no C++ compiler (g++ or clang++)", "install one, or train with --no-compile"
        )
    return Check("compile", "ok", f"with {path}")


def _ray() -> Check:
    return _by_probe("ray", ("ray",), "import ray; print(ray.__version__)", SIM, "reinstall ray")


def _openpi_client() -> Check:
    code = "from openpi_client import websocket_client_policy; print('openpi-client')"
    install = "pip install --no-deps openpi-client (it asks for an older NumPy, and works with this one)"
    return _by_probe("openpi_client", ("openpi_client",), code, install, "reinstall openpi-client")


def _proc() -> Check:
    """Processes as files: what the tests of killed workers look at."""
    if Path("/proc/self/stat").is_file():
        return Check("proc", "ok", "/proc lists processes")
    return Check("proc", "missing", "no /proc on this system", "none: Linux has it")


def _mount() -> Check:
    """A small file system of its own: what the tests of a full disk fill."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        return Check("mount", "missing", "mounting a small file system needs root on Linux", "run the tests as root")
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return Check("mount", "missing", done.stderr.strip() or "mount failed", "run the tests where it is allowed")
        subprocess.run(["umount", folder], check=True)
    return Check("mount", "ok", "tmpfs can be mounted")


def _package(name: str, packages: tuple[Package, ...]) -> Check:
    """Networks or clips out of published packages, which `worldmodel face fetch` gets."""
    for package in packages:
        if root(package) is None:
            detail = f"{package.name} {package.version} is not in {cache()}"
            return Check(name, "missing", detail, f"{COMMAND} --what {package.option}")
    return Check(name, "ok", ", ".join(f"{package.name} {package.version}" for package in packages))


def _face_networks() -> Check:
    return _through_onnx("face_networks", (NETWORKS,), ("onnx", "onnxruntime"))


def _face_recogniser() -> Check:
    return _through_onnx("face_recogniser", (RECOGNISER,), ("onnxruntime",))


def _through_onnx(name: str, packages: tuple[Package, ...], needed: tuple[str, ...]) -> Check:
    if absent := [each for each in needed if not installed(each)]:
        return Check(name, "missing", f"{', '.join(absent)} not installed", SIM)
    return _package(name, packages)


def _face_clips() -> Check:
    return _package("face_clips", (FACE_CLIPS, CAR_CLIP))


def _ffmpeg() -> Check:
    """The program, which the tests of streams listen with; worldmodel itself uses the libraries inside PyAV."""
    path = shutil.which("ffmpeg")
    if path is None:
        return Check("ffmpeg", "missing", "no ffmpeg on PATH", "Debian: apt-get install ffmpeg")
    protocols = subprocess.run([path, "-protocols"], capture_output=True, text=True, check=False).stdout.split()
    if "rtmp" not in protocols:
        return Check("ffmpeg", "broken", f"{path} knows no RTMP", "install a build with RTMP")
    return Check("ffmpeg", "ok", path)


def _signing() -> Check:
    return _by_probe("signing", ("cryptography",), "import cryptography; print(cryptography.__version__)", SIM, SIM)


CAPABILITIES: dict[str, Callable[[], Check]] = {
    "h264": once(_h264),
    "av1": once(_av1),
    "decord": once(_decord),
    "vizdoom": once(_vizdoom),
    "egl": once(_egl),
    "pusht": once(_pusht),
    "chromium": once(_chromium),
    "triton": once(_triton),
    "compile": once(_compile),
    "ray": once(_ray),
    "metaworld": once(_metaworld),  # asks for egl
    "cuda": once(_cuda),
    "xformers": once(_xformers),  # asks for cuda
    "openpi_client": once(_openpi_client),
    "face_networks": once(_face_networks),
    "face_recogniser": once(_face_recogniser),
    "face_clips": once(_face_clips),
    "signing": once(_signing),
    "ffmpeg": once(_ffmpeg),
    "proc": once(_proc),
    "mount": once(_mount),
}


def check(name: str) -> Check:
    """The capability of that name, asked once per process. Raises KeyError for an unknown name."""
    return CAPABILITIES[name]()
