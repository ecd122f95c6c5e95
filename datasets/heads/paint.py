"""What colour a head is in every direction, and how it looks under a light. Colours are linear RGB in 0..1.

Shapes have soft edges of about a pixel. Letters: B rows, N places.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodel.datasets.heads.person import Face, Hair, colours
from worldmodel.datasets.heads.rays import Hits
from worldmodel.datasets.heads.scene import Expression, Light, Scene
from worldmodel.datasets.heads.shape import JAW_DROP

SKIN = ((0.82, 0.58, 0.46), (0.70, 0.45, 0.32), (0.45, 0.25, 0.155), (0.20, 0.105, 0.065), (0.10, 0.052, 0.036))
HAIR = ((0.62, 0.43, 0.2), (0.3, 0.165, 0.075), (0.11, 0.06, 0.035), (0.035, 0.028, 0.024), (0.015, 0.014, 0.016))
IRIS = ((0.08, 0.035, 0.015), (0.22, 0.12, 0.04), (0.12, 0.2, 0.09), (0.1, 0.22, 0.4), (0.3, 0.36, 0.4))
LIP, MOUTH, TEETH = (0.50, 0.13, 0.13), (0.05, 0.012, 0.012), (0.75, 0.70, 0.60)
SCLERA, LASH = (0.72, 0.69, 0.66), (0.02, 0.014, 0.012)


def skin_colour(melanin: Tensor, ruddy: Tensor) -> Tensor:
    """[B] each -> [B, 3, 1]."""
    tint = torch.stack((torch.ones_like(ruddy), 1 - 0.16 * ruddy, 1 - 0.2 * ruddy), 1)
    return colours(SKIN, melanin) * tint[..., None]


def hair_colour(hair: Hair) -> Tensor:
    """[B, 3, 1]."""
    base = colours(HAIR, hair.dark)
    red = torch.tensor((0.36, 0.1, 0.03), device=base.device)[:, None]
    base = torch.lerp(base, red, (0.55 * hair.red**3 * (1 - hair.dark) * 1.6).clamp(0, 1)[:, None, None])
    grey = torch.tensor((0.5, 0.5, 0.5), device=base.device)[:, None]
    return torch.lerp(base, grey, hair.grey.clamp(0, 1)[:, None, None])


def bell(square: Tensor) -> Tensor:
    """Nearly exp(-d^2) of squared distances, and nothing from d = 2 on; the argument is used up."""
    near = square.mul_(-0.25).add_(1).clamp_(min=0)
    return near.square_().square_()


@dataclass(slots=True)
class Canvas:
    """Colours [B, 3, N] that layers are put on, how much they shine [B, N], and a pixel's size [B, 1] in the disc."""

    colour: Tensor
    shine: Tensor
    pixel: Tensor

    def step(self, distance: Tensor, soft: float = 0.0) -> Tensor:
        """0 outside, 1 inside, of a signed distance [B, N] that is above 0 inside; over a pixel, and `soft` more."""
        return (distance * (1 / (self.pixel + soft))).add_(0.5).clamp_(0, 1)

    def line(self, distance: Tensor, width: float) -> Tensor:
        """1 on a line and 0 beside it; where it is thinner than a pixel, as much less as it covers of one."""
        wide = (width * width + 0.25 * self.pixel.square()).sqrt()
        return bell((distance * (1 / wide)).square_()) * (width / wide)

    def put(self, layer: Tensor, weight: Tensor, shine: float | None = None) -> None:
        """Blend a colour, [3, 1] or [B, 3, 1 or N], in by weights [B, N]."""
        self.colour.addcmul_(weight[:, None], layer - self.colour)
        if shine is not None:
            self.shine.addcmul_(weight, shine - self.shine)

    def darken(self, by: Tensor) -> None:
        """Take a share [B, N] of the light away."""
        self.colour.mul_((1 - by)[:, None])


@dataclass(frozen=True, slots=True)
class Mouth:
    """The lines of a mouth at distances x [B, N] from the middle of the face: how far along they are (1 at the corner),
    edges of the lips and of the opening."""

    across: Tensor
    upper: Tensor
    top: Tensor  # of the opening
    bottom: Tensor
    lower: Tensor


def mouth_lines(face: Face, expression: Expression, x: Tensor) -> Mouth:
    f, e = face, expression
    half = f["mouth_width"] * (1 + 0.2 * e["smile"].clamp(min=0)) * (1 - 0.35 * e["round"])
    across = x.abs() / half
    square = across * across
    arch = (1 - square).clamp(min=0)
    middle = f["mouth_y"] + e["smile"] * (0.02 - 0.075 * square)
    drop = e["open"] * JAW_DROP
    top, bottom = middle - 0.12 * drop * arch, middle + drop * arch
    full = arch.sqrt()
    bow = 1 - f["lip_bow"] * bell(square * 18) + 0.15 * bell((across - 0.28).square_().mul_(30))
    return Mouth(across, top - f["lip_upper"] * bow * arch, top, bottom, bottom + f["lip_lower"] * full * arch.sqrt())


@dataclass(frozen=True, slots=True)
class Eye:
    """Lines of the eyes in places (x from the middle of the face, y) [B, N]."""

    across: Tensor  # -1 at the inner corner, 1 at the outer
    down: Tensor  # from the line through the corners
    upper: Tensor  # lids, from the same line
    lower: Tensor


def eye_lines(face: Face, expression: Expression, x: Tensor, y: Tensor) -> Eye:
    """x: distance from the middle of the face, so that both eyes are one."""
    f, e = face, expression
    out = x - f["eye_x"]
    across = out / f["eye_width"]
    arch = (1 - across * across).clamp(min=0)
    squint = 1 - 0.25 * e["smile"].clamp(min=0)
    high = f["eye_height"] * squint * (1 + 0.15 * e["brows"].clamp(min=0))
    upper = torch.lerp(-high, 0.5 * f["eye_height"], e["blink"]) * arch
    return Eye(across, y - f["eye_y"] + f["eye_tilt"] * out, upper, 0.55 * f["eye_height"] * arch)


def brow_line(face: Face, expression: Expression, x: Tensor) -> tuple[Tensor, Tensor]:
    """Height y of the middle of a brow over the distance x [B, N] from the middle of the face; and how far along, where
    -1 is its inner and 1 its outer end."""
    f, e = face, expression
    out = x - f["eye_x"]
    along = out / f["brow_length"]
    height = f["eye_y"] - f["brow_gap"] - 0.055 * e["brows"] - f["brow_tilt"] * out
    inner = (0.5 - along).clamp(0, 1.5)
    return height - f["brow_arch"] * (1 - along * along) + 0.04 * e["frown"] * inner, along


def paint(scene: Scene, hits: Hits, pixel: Tensor) -> Canvas:
    """Colours of a head where rays meet it. pixel: its size in half heights of the head, [B, 1]."""
    expression, face, (x, y, z) = scene.expression, scene.person.face, hits.direction
    skin = skin_colour(face.melanin, face.ruddy)
    canvas = Canvas(skin.expand(-1, 3, x.shape[1]).clone(), torch.full_like(x, 0.32), pixel * 1.25)
    side = x.abs()
    mouth = mouth_lines(face, expression, side)
    strands = hair_colour(scene.person.hair)
    _skin(canvas, face, side, x, y)
    _beard(canvas, face, mouth, strands, side, y, z)
    _mouth(canvas, face, mouth, skin, y)
    _eyes(canvas, scene, x, side, y)
    height, along = brow_line(face, expression, side)
    thick = 0.5 * face["brow_thickness"] * (1.25 - 0.5 * along).clamp_(0.5, 1.6)
    brow = canvas.step(thick - (y - height).abs_()) * canvas.step((1 - along.abs()) * 0.2, 0.02)
    canvas.put(strands * 0.5, brow * face["brow_dark"] * ((z - 0.1) * 8).clamp_(0, 1), 0.1)
    waves = scene.person.hair["waves"]
    wave = torch.sin(31 * x + 17 * y.square() + 4 * waves * torch.sin(7 * y + 3 * z) + 9 * z)
    wave = wave + 0.6 * torch.sin(53 * x - 21 * y + 3 * wave)
    canvas.put(strands * (0.85 + 0.13 * wave)[:, None], hits.hair, 0.4)
    return canvas


def _skin(canvas: Canvas, face: Face, side: Tensor, x: Tensor, y: Tensor) -> None:
    tip = face["eye_y"] + face["nose_length"]
    blush = bell(((side - 0.5) * (1 / 0.2)).square_().addcmul_(y - 0.25, y - 0.25, value=1 / 0.17**2))
    blush += 0.6 * bell((x * (1 / 0.13)).square_().addcmul_(y - tip, y - tip, value=100))
    canvas.colour.mul_(1 - ((0.55 * (0.3 + face["ruddy"])) * blush)[:, None] * _tone(x, 0.0, 0.28, 0.32))
    seed = face["pattern"]
    waves = torch.sin(47 * x + 13 * y + seed) + torch.sin(-29 * x + 43 * y + 2.3 * seed)
    spots = canvas.step(waves + torch.sin(21 * x + 61 * y + 4.1 * seed) - 1.35, 0.5) * (1.5 * blush).clamp_(max=1)
    canvas.darken(0.55 * face["freckles"].clamp(min=0) * spots)
    out, down = (side - 0.55 * face["nose_width"]) * (1 / 0.05), (y - tip - 0.06) * (1 / 0.036)
    canvas.darken(0.8 * bell(out.square_().addcmul_(down, down) * 1.5))
    edge = (y - tip - 0.085) * (1 / 0.03)
    canvas.darken(0.28 * bell(edge.square_().addcmul_(x, x / face["nose_width"].square())))
    # The fold from the wing of the nose to beside the corner of the mouth, as far as the two are apart.
    down = ((y - tip) / (face["mouth_y"] + 0.04 - tip)).clamp_(-0.5, 1.5)
    line = face["nose_width"] + 0.05 + (face["mouth_width"] - face["nose_width"] + 0.02) * down
    canvas.darken(
        0.32 * face["folds"] * canvas.line(side - line, 0.028) * canvas.step(0.55 - (down - 0.5).abs_(), 0.35)
    )
    # Light from above leaves less under the lower lip.
    canvas.darken(
        0.18 * bell((x * 5).square_().addcmul_(y - face["mouth_y"] - 0.15, y - face["mouth_y"] - 0.15, value=400))
    )


def _beard(canvas: Canvas, face: Face, mouth: Mouth, strands: Tensor, side: Tensor, y: Tensor, z: Tensor) -> None:
    tip = face["eye_y"] + face["nose_length"]
    wide = 1.1 - 0.82 * face["beard_low"]
    begin = face["mouth_y"] + 0.03
    from_y = begin + (tip - 0.05 - begin) * ((side - 0.3) * 2.5).clamp_(0, 1)
    beard = canvas.step(y - from_y, 0.2) * canvas.step(wide - side, 0.3) * ((0.55 + z) * 3).clamp_(0, 1)
    ends = 1.3 - mouth.across  # a moustache grows thinner to its ends, beyond the corners of the mouth
    top = mouth.upper - 0.012 - 0.075 * ends.clamp(0, 0.8)
    lip = canvas.step(torch.minimum(y - top, mouth.upper + 0.012 - y), 0.02) * canvas.step(ends * 0.2, 0.05)
    full, over = ((1.5 * face[name].clamp(min=0)).clamp_(max=0.92) for name in ("beard", "moustache"))
    canvas.put(strands * 0.7, torch.maximum(beard * full, lip * over), 0.12)


def _mouth(canvas: Canvas, face: Face, mouth: Mouth, skin: Tensor, y: Tensor) -> None:
    pale = skin * _tone(y, 0.9, 0.62, 0.6)
    colour = pale + (_tone(y, *LIP) * (0.35 + skin) - pale) * (0.75 * face["lip_red"][..., None])
    inside = canvas.step((1 - mouth.across) * 0.2, 0.02)
    above, below = y - mouth.top, mouth.bottom - y
    canvas.put(colour, canvas.step(torch.minimum(y - mouth.upper, mouth.lower - y)) * inside, 0.55)
    hollow = torch.minimum(above, below)
    opening = canvas.step(hollow - 0.25 * canvas.pixel) * inside
    line = canvas.line(above, 0.014) * inside * 0.75  # where closed lips meet
    canvas.put(_tone(y, *MOUTH), torch.maximum(opening, line), 0.1)
    teeth = canvas.step(torch.minimum(hollow, 0.05 - above)) * canvas.step(0.8 - mouth.across, 0.2)
    canvas.put(_tone(y, *TEETH), teeth * opening, 0.3)


def _eyes(canvas: Canvas, scene: Scene, x: Tensor, side: Tensor, y: Tensor) -> None:
    face, expression, light = scene.person.face, scene.expression, scene.light
    eye = eye_lines(face, expression, side, y)
    lid = eye.down - eye.upper
    near = canvas.step((1.15 - eye.across.abs()) * 0.15)
    canvas.darken(0.3 * canvas.line(lid + 0.032, 0.016) * near)
    opening = canvas.step(torch.minimum(lid, eye.lower - eye.down)) * canvas.step((1 - eye.across.abs()) * 0.15)
    canvas.put(_tone(y, *SCLERA), opening, 0.5)
    over = side - face["eye_x"] - x.sign() * (0.3 * expression["gaze_x"] * face["eye_width"])
    below = eye.down + 0.01 - 0.3 * expression["gaze_y"] * face["eye_height"]
    far = torch.addcmul(over * over, below, below).sqrt_()
    colour = colours(IRIS, face.iris_colour)
    canvas.put(colour * 0.35, canvas.step(face["iris"] - far) * opening, 0.9)
    canvas.put(colour, canvas.step(0.85 * face["iris"] - far) * opening)
    canvas.put(_tone(y, 0.004, 0.004, 0.004), canvas.step(0.45 * face["iris"] - far) * opening)
    left, high = over * x.sign() - 0.03 * light["side"], below + 0.04 * light["height"]
    canvas.put(_tone(y, 0.9, 0.9, 0.9), canvas.line(torch.addcmul(left * left, high, high).sqrt_(), 0.016) * opening)
    canvas.darken(0.5 * canvas.line(lid, 0.03) * opening)
    canvas.put(_tone(y, *LASH), (0.45 + 0.5 * face["lashes"]) * canvas.line(lid, 0.016) * near)


def _tone(like: Tensor, red: float, green: float, blue: float) -> Tensor:
    """A colour as [3, 1] on the device of another tensor."""
    return torch.tensor((red, green, blue), device=like.device)[:, None]


def shade(canvas: Canvas, hits: Hits, light: Light, turned: Tensor) -> Tensor:
    """Colours [B, 3, N] under a light. turned: from the head's frame to the picture's, [B, 3, 3]."""
    key, colour, ambient = lamp(light)
    own = (turned * key[:, :, None]).sum(1)[..., None]  # the light's direction in the head's frame, [B, 3, 1]
    half = torch.nn.functional.normalize(own + turned[:, 2, :, None], dim=1)
    up = turned[:, 1, :, None]  # what is down in the picture
    n = hits.normal
    facing = n[0] * own[:, 0] + n[1] * own[:, 1] + n[2] * own[:, 2]
    glossy = (n[0] * half[:, 0] + n[1] * half[:, 1] + n[2] * half[:, 2]).clamp(min=0)
    down = n[0] * up[:, 0] + n[1] * up[:, 1] + n[2] * up[:, 2]
    wrap = _tone(facing, 0.34, 0.2, 0.15) * (1 - hits.hair)[:, None]
    direct = (facing[:, None] + wrap).div_(1 + wrap).clamp_(min=0).mul_((0.45 + 0.55 * hits.open)[:, None]).mul_(colour)
    sky = (hits.open * (0.8 - 0.3 * down))[:, None]
    lit = canvas.colour * direct.addcmul_(ambient[..., None], sky)
    glossy = glossy.square_().square_().square_().square_().mul_(0.35 * canvas.shine * hits.open)
    return lit.addcmul_(glossy[:, None], colour)


def lamp(light: Light) -> tuple[Tensor, Tensor, Tensor]:
    """Direction of the key light [B, 3], its colour [B, 3, 1] and that of the surroundings [B, 3]."""
    front = (1 - light.side**2 - light.height**2 * (1 - light.side**2)).clamp(min=0.04).sqrt()
    key = torch.nn.functional.normalize(torch.stack((light.side, -light.height, front), 1), dim=1)
    tint = torch.stack((1 + 0.12 * light.warm, torch.ones_like(light.warm), 1 - 0.18 * light.warm), 1)
    cool = torch.stack((1 - 0.06 * light.warm, torch.ones_like(light.warm), 1 + 0.08 * light.warm), 1)
    return key, (light.key[:, None] * tint)[..., None], light.ambient[:, None] * cool
