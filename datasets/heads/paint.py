"""What colour a head is in every direction, and how it looks under a light. Colours are linear RGB in 0..1.

Shapes have soft edges of about a pixel. Letters: B rows, N places.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodel.datasets.heads.person import Face, Hair, Person, colours
from worldmodel.datasets.heads.rays import Hits
from worldmodel.datasets.heads.scene import Expression, Light, Scene
from worldmodel.datasets.heads.shape import JAW_DROP

SKIN = ((0.82, 0.58, 0.46), (0.70, 0.45, 0.32), (0.45, 0.25, 0.155), (0.20, 0.105, 0.065), (0.10, 0.052, 0.036))
HAIR = ((0.62, 0.43, 0.2), (0.3, 0.165, 0.075), (0.11, 0.06, 0.035), (0.035, 0.028, 0.024), (0.015, 0.014, 0.016))
IRIS = ((0.08, 0.035, 0.015), (0.22, 0.12, 0.04), (0.12, 0.2, 0.09), (0.1, 0.22, 0.4), (0.3, 0.36, 0.4))
LIP, MOUTH, TEETH = (0.50, 0.13, 0.13), (0.05, 0.012, 0.012), (0.75, 0.70, 0.60)
SCLERA, LASH = (0.72, 0.69, 0.66), (0.02, 0.014, 0.012)
EDGE = 0.022  # width of soft edges in the disc


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


def step(distance: Tensor, edge: float = EDGE) -> Tensor:
    """0 outside, 1 inside, of a signed distance that is above 0 inside."""
    return (distance * (1 / edge) + 0.5).clamp(0, 1)


@dataclass(slots=True)
class Canvas:
    """Colours [B, 3, N] that layers are put on, and how much they shine [B, N]."""

    colour: Tensor
    shine: Tensor

    def put(self, layer: tuple[float, float, float] | Tensor, weight: Tensor, shine: float | None = None) -> None:
        """Blend a colour, [3] or [B, 3, 1 or N], in by weights [B, N]."""
        if not isinstance(layer, Tensor):
            layer = torch.tensor(layer, device=weight.device)[:, None]
        self.colour += weight[:, None] * (layer - self.colour)
        if shine is not None:
            self.shine += weight * (shine - self.shine)

    def darken(self, factor: Tensor) -> None:
        """Multiply by factors [B, N]."""
        self.colour *= factor[:, None]


@dataclass(frozen=True, slots=True)
class Mouth:
    """The lines of a mouth above places x [B, N]: edges of the lips, and how far from its middle a place is (0..1)."""

    across: Tensor
    upper: Tensor
    top: Tensor  # of the opening
    bottom: Tensor
    lower: Tensor


def mouth_lines(face: Face, expression: Expression, x: Tensor) -> Mouth:
    f, e = face.columns(), expression.columns()
    half = f["mouth_width"] * (1 + 0.2 * e["smile"].clamp(min=0)) * (1 - 0.35 * e["round"])
    across = x / half
    square = across * across
    arch = (1 - square).clamp(min=0)
    middle = f["mouth_y"] + e["smile"] * (0.02 - 0.075 * square)
    drop = e["open"] * JAW_DROP
    top, bottom = middle - 0.12 * drop * arch, middle + drop * arch
    full = arch.sqrt()
    bow = 1 - f["lip_bow"] * torch.exp(-square * 18) + 0.15 * torch.exp(-((across.abs() - 0.28) ** 2) * 30)
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
    f, e = face.columns(), expression.columns()
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
    f, e = face.columns(), expression.columns()
    out = x - f["eye_x"]
    along = out / f["brow_length"]
    height = f["eye_y"] - f["brow_gap"] - 0.055 * e["brows"] - f["brow_tilt"] * out
    inner = (0.5 - along).clamp(0, 1.5)
    return height - f["brow_arch"] * (1 - along * along) + 0.04 * e["frown"] * inner, along


def paint(person: Person, expression: Expression, hits: Hits) -> Canvas:
    """Colours of a head where rays meet it."""
    face, (x, y, z) = person.face, hits.direction
    f = face.columns()
    skin = skin_colour(face.melanin, face.ruddy)
    canvas = Canvas(skin.expand(-1, 3, x.shape[1]).clone(), torch.full_like(x, 0.32))
    side = x.abs()
    _skin(canvas, face, side, x, y)
    strands = hair_colour(person.hair)
    _beard(canvas, face, expression, strands, side, y, z)
    _mouth(canvas, face, expression, skin, x, y)
    _eyes(canvas, face, expression, x, side, y)
    height, along = brow_line(face, expression, side)
    thick = 0.5 * f["brow_thickness"] * (1.25 - 0.5 * along).clamp(0.5, 1.6)
    brow = step(thick - (y - height).abs()) * step((1 - along.abs()) * 0.2, 0.05)
    canvas.put(strands * 0.5, brow * f["brow_dark"] * step(z - 0.1, 0.1), 0.1)
    wave = torch.sin(38 * x + 3 * person.hair.waves[:, None] * torch.sin(9 * y) + 6 * z)
    canvas.put(strands * (0.85 + 0.25 * wave)[:, None], hits.hair, 0.4)
    return canvas


def _skin(canvas: Canvas, face: Face, side: Tensor, x: Tensor, y: Tensor) -> None:
    f = face.columns()
    tip = f["eye_y"] + f["nose_length"]
    blush = torch.exp(-(((side - 0.5) / 0.2) ** 2) - ((y - 0.25) / 0.17) ** 2)
    blush = blush + 0.6 * torch.exp(-((x / 0.13) ** 2) - ((y - tip) / 0.1) ** 2)
    red = torch.tensor((1.0, 0.72, 0.68), device=x.device)[:, None]
    canvas.colour *= 1 + (0.55 * (0.3 + f["ruddy"]) * blush).clamp(max=1)[:, None] * (red - 1)
    seed = f["pattern"]
    waves = torch.sin(47 * x + 13 * y + seed) + torch.sin(-29 * x + 43 * y + 2.3 * seed)
    spots = step(waves + torch.sin(21 * x + 61 * y + 4.1 * seed) - 1.35, 0.5) * (1.5 * blush).clamp(max=1)
    canvas.darken(1 - 0.55 * f["freckles"].clamp(min=0) * spots)
    hole = ((side - 0.55 * f["nose_width"]) / 0.036) ** 2 + ((y - tip - 0.065) / 0.022) ** 2
    canvas.darken(1 - 0.75 * step(1 - hole, 0.8))
    # The fold from the wing of the nose to beside the corner of the mouth, as far as the two are apart.
    down = ((y - tip) / (f["mouth_y"] + 0.04 - tip)).clamp(-0.5, 1.5)
    line = f["nose_width"] + 0.05 + (f["mouth_width"] - f["nose_width"] + 0.02) * down
    fold = torch.exp(-(((side - line) / 0.028) ** 2)) * step(0.55 - (down - 0.5).abs(), 0.35)
    canvas.darken(1 - 0.32 * f["folds"] * fold)


def _beard(
    canvas: Canvas, face: Face, expression: Expression, strands: Tensor, side: Tensor, y: Tensor, z: Tensor
) -> None:
    f = face.columns()
    mouth = mouth_lines(face, expression, side)
    tip = f["eye_y"] + f["nose_length"]
    wide = torch.lerp(torch.full_like(f["beard_low"], 1.1), 0.28 * torch.ones_like(f["beard_low"]), f["beard_low"])
    from_y = torch.lerp(f["mouth_y"] + 0.03, tip - 0.05, ((side - 0.3) / 0.4).clamp(0, 1))
    beard = step(y - from_y, 0.08) * step(wide - side, 0.1) * step(0.55 + z, 0.3)
    full = (f["beard"].clamp(min=0) * 1.5).clamp(max=0.95)
    lip = step(0.95 - mouth.across.abs(), 0.1) * step(y - tip - 0.1, 0.03) * step(mouth.top - y, 0.02)
    lip = lip * (f["moustache"].clamp(min=0) * 1.5).clamp(max=0.95)
    canvas.put(strands * 0.7, torch.maximum(beard * full, lip), 0.12)


def _mouth(canvas: Canvas, face: Face, expression: Expression, skin: Tensor, x: Tensor, y: Tensor) -> None:
    mouth = mouth_lines(face, expression, x)
    red = torch.tensor(LIP, device=x.device)[:, None]
    colour = torch.lerp(skin * torch.tensor((0.9, 0.62, 0.6), device=x.device)[:, None], red * (0.35 + skin),
                        0.75 * face.lip_red[:, None, None])  # fmt: skip
    inside = step((1 - mouth.across.abs()) * 0.2, 0.04)
    lips = step(torch.minimum(y - mouth.upper, mouth.lower - y)) * inside
    canvas.put(colour, lips, 0.55)
    hollow = torch.minimum(y - mouth.top, mouth.bottom - y)
    opening = step(hollow) * inside
    line = torch.exp(-(((y - mouth.top) / 0.014) ** 2)) * inside * 0.75  # where closed lips meet
    canvas.put(MOUTH, torch.maximum(opening, line), 0.1)
    teeth = step(torch.minimum(hollow, mouth.top + 0.05 - y)) * step(0.8 - mouth.across.abs(), 0.2)
    canvas.put(TEETH, teeth * opening, 0.3)


def _eyes(canvas: Canvas, face: Face, expression: Expression, x: Tensor, side: Tensor, y: Tensor) -> None:
    f, e = face.columns(), expression.columns()
    eye = eye_lines(face, expression, side, y)
    near = step((1.15 - eye.across.abs()) * 0.15, 0.03)
    crease = torch.exp(-(((eye.down - eye.upper + 0.032) / 0.016) ** 2)) * near
    canvas.darken(1 - 0.3 * crease)
    opening = step(torch.minimum(eye.down - eye.upper, eye.lower - eye.down)) * step(1 - eye.across.abs(), 0.1)
    canvas.put(SCLERA, opening, 0.5)
    over = side - f["eye_x"] - x.sign() * 0.3 * e["gaze_x"] * f["eye_width"]
    below = eye.down + 0.01 - 0.3 * e["gaze_y"] * f["eye_height"]
    far = (over * over + below * below).sqrt() / f["iris"]
    colour = colours(IRIS, face.iris_colour)
    canvas.put(colour * 0.35, step(1 - far, 0.3) * opening, 0.9)
    canvas.put(colour, step(0.85 - far, 0.3) * opening)
    canvas.put((0.004, 0.004, 0.004), step(0.45 - far, 0.3) * opening)
    glint = (over * x.sign() + 0.02) ** 2 + (below + 0.022) ** 2
    canvas.put((1.0, 1.0, 1.0), step(0.018 - glint.sqrt()) * opening * 0.9)
    shade = torch.exp(-(((eye.down - eye.upper) / 0.03) ** 2)) * opening
    canvas.darken(1 - 0.5 * shade)
    lash = torch.exp(-(((eye.down - eye.upper) / 0.015) ** 2)) * near
    canvas.put(LASH, (0.45 + 0.5 * f["lashes"]) * lash)


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
    wrap = torch.tensor((0.34, 0.2, 0.15), device=facing.device)[:, None] * (1 - hits.hair[:, None])
    direct = ((facing[:, None] + wrap) / (1 + wrap)).clamp(min=0) * colour
    sky = ambient[..., None] * (0.8 - 0.3 * down)[:, None]
    lit = canvas.colour * ((direct * (0.45 + 0.55 * hits.open)[:, None] + sky * hits.open[:, None]))
    glossy = glossy**4
    return lit + (0.35 * canvas.shine * (glossy**4) * hits.open)[:, None] * colour


def lamp(light: Light) -> tuple[Tensor, Tensor, Tensor]:
    """Direction of the key light [B, 3], its colour [B, 3, 1] and that of the surroundings [B, 3]."""
    front = (1 - light.side**2 - light.height**2 * (1 - light.side**2)).clamp(min=0.04).sqrt()
    key = torch.nn.functional.normalize(torch.stack((light.side, -light.height, front), 1), dim=1)
    tint = torch.stack((1 + 0.12 * light.warm, torch.ones_like(light.warm), 1 - 0.18 * light.warm), 1)
    cool = torch.stack((1 - 0.06 * light.warm, torch.ones_like(light.warm), 1 + 0.08 * light.warm), 1)
    return key, (light.key[:, None] * tint)[..., None], light.ambient[:, None] * cool


def neck_skin(scene: Scene) -> Tensor:
    return skin_colour(scene.person.hair.skin_melanin, scene.person.hair.skin_ruddy)
