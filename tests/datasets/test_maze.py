"""The maze: geometry against closed forms, motion against plain arithmetic, rows against single worlds."""

import math

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.datasets.worlds import open_world
from worldmodel.datasets.worlds.base import WorldOptions
from worldmodel.datasets.worlds.maze import Maze, VectorMaze
from worldmodel.datasets.worlds.maze.layout import generate
from worldmodel.datasets.worlds.maze.motion import PASSABLE, RADIUS, REACH, STRIDE, move, settled, slide_doors
from worldmodel.datasets.worlds.maze.picture import FOG, GLOOM, Painter
from worldmodel.datasets.worlds.maze.plan import EAST, NORTH, PILLAR_RADIUS, SOUTH, STEPS, WEST, Door, Layout, Pillar
from worldmodel.datasets.worlds.maze.raycast import DOOR_LIGHT, FOV, LIGHT, cast, focal, slopes, stack
from worldmodel.datasets.worlds.maze.textures import LEVELS, TEXELS, atlas
from worldmodel.errors import UserError

HALL = 12  # cells; the open inside is [1, 11] x [1, 11]


def hall(doors: tuple[Door, ...] = (), pillars: tuple[Pillar, ...] = (), columns: tuple = ()) -> Layout:
    """One square room; ``columns`` are single wall cells in it. Faces show the sides' names, as textures 0 to 3."""
    wall = np.ones((HALL, HALL), bool)
    wall[1:-1, 1:-1] = False
    for cell in columns:
        wall[cell] = True
    face = np.broadcast_to(np.arange(4, dtype=np.int32), (HALL, HALL, 4)).copy()
    floor = np.full((HALL, HALL), atlas().number("floor slabs"), np.int32)
    ceiling = np.full((HALL, HALL), atlas().number("ceiling dark"), np.int32)
    return Layout(wall, np.where(wall, -1, 0).astype(np.int32), face, floor, ceiling, doors, pillars, ())


def look(layout: Layout, x: float, y: float, angle: float, size: int = 64, opening: float = 0.0):
    scene = stack([layout])
    pose = np.array([[x, y, angle]])
    hits = cast(scene, pose, np.full(scene.door.shape[:2], opening), size)
    return hits, Painter(size).paint(scene, pose, hits)[0]


inside = st.floats(1.4, HALL - 1.4)
angles = st.floats(0, 360, exclude_max=True)


@given(inside, inside, angles)
@settings(max_examples=200, deadline=None)
def test_depth_of_every_ray_is_the_closed_form_of_a_box(x, y, angle):
    hits, _ = look(hall(), x, y, angle, 16)
    heading = math.radians(angle)
    for column in range(16):
        slope = (column + 0.5 - 8) / 8 * math.tan(math.radians(FOV / 2))
        dx = math.cos(heading) + slope * math.sin(heading)
        dy = math.sin(heading) - slope * math.cos(heading)
        to_x = ((HALL - 1 if dx > 0 else 1) - x) / dx if dx else math.inf
        to_y = ((HALL - 1 if dy > 0 else 1) - y) / dy if dy else math.inf
        assert hits.depth[0, column] == pytest.approx(min(to_x, to_y), rel=1e-12)
        assert hits.slant[0, column] == pytest.approx(abs(dx if to_x < to_y else dy) / math.hypot(dx, dy), rel=1e-9)
        if abs(to_x - to_y) > 1e-6:
            side = (WEST if dx > 0 else EAST) if to_x < to_y else (SOUTH if dy > 0 else NORTH)
            assert hits.texture[0, column] == side
            assert hits.light[0, column] == LIGHT[side]


@pytest.mark.parametrize(("angle", "gap"), [(0, 11 - 4.3), (90, 11 - 6.1), (180, 3.3), (270, 5.1)])
def test_a_wall_ahead_has_one_depth_in_all_columns(angle, gap):
    """No fish-eye: a flat wall stays flat. The centre ray is the distance to the wall."""
    size = 64
    hits, _ = look(hall(), 4.3, 6.1, angle, size)
    ahead = np.abs(slopes(size)) * gap < 3
    assert ahead.sum() > 20
    np.testing.assert_allclose(hits.depth[0, ahead], gap, rtol=1e-12)


@given(inside, inside, angles, st.sampled_from([16, 32, 64]))
@settings(max_examples=60, deadline=None)
def test_wall_heights_follow_one_over_depth(x, y, angle, size):
    scene = stack([hall()])
    hits = cast(scene, np.array([[x, y, angle]]), np.zeros((1, 0)), size)
    depth = Painter(size).depth(hits)[0]
    flat = np.isclose(depth, hits.depth[0].astype(np.float32), rtol=1e-6)  # [H, W] pixels on a wall
    half = focal(size) * 0.5 / hits.depth[0]  # pixels from the horizon to the wall's edge
    rows = np.abs(np.arange(size)[:, None] + 0.5 - size / 2)
    clear = np.abs(rows - half) > 1e-3
    np.testing.assert_array_equal(flat[clear], (rows < half)[clear])
    ground = np.broadcast_to(0.5 * focal(size) / rows, depth.shape)
    np.testing.assert_allclose(depth[~flat], ground[~flat], rtol=1e-5)


@given(inside, inside, angles)
@settings(max_examples=40, deadline=None)
def test_the_picture_has_floor_and_ceiling_where_the_depth_has(x, y, angle):
    """Other floors and ceilings change exactly the pixels that are nearer than the wall of their column."""
    red, blue = hall(), hall()
    for layout, name in ((red, "red"), (blue, "blue")):
        layout.floor[:] = layout.ceiling[:] = atlas().number(f"floor {name} carpet")
    hits, one = look(red, x, y, angle)
    _, other = look(blue, x, y, angle)
    rows = np.abs(np.arange(64)[:, None] + 0.5 - 32)
    half = focal(64) * 0.5 / hits.depth[0]
    clear = np.abs(rows - half) > 1e-3
    np.testing.assert_array_equal((one != other).any(-1)[clear], (rows > half)[clear])


@given(inside, inside, angles, st.booleans())
@settings(max_examples=25, deadline=None)
def test_floor_and_ceiling_show_the_texel_at_their_place(x, y, angle, below):
    """Near rows only, which are painted from level 0; a mixed floor, so that the cell counts, too."""
    layout = hall()
    carpets = [f"floor {name}" for name in ("oak", "tiles", "marble", "red carpet")]
    surface = layout.floor if below else layout.ceiling
    surface[:] = np.array([atlas().number(name) for name in carpets])[np.add.outer(np.arange(12), np.arange(12)) % 4]
    hits, image = look(layout, x, y, angle)
    heading, slope = math.radians(angle), slopes(64)
    for row in (56, 60, 63):
        depth = 0.5 / slope[row]
        light = int(np.float32(GLOOM + (1 - GLOOM) * math.exp(-depth / FOG)) * 256)
        px = x + depth * (math.cos(heading) + slope * math.sin(heading))
        py = y + depth * (math.sin(heading) - slope * math.cos(heading))
        edge = np.minimum(np.abs(px * TEXELS - np.rint(px * TEXELS)), np.abs(py * TEXELS - np.rint(py * TEXELS)))
        for column in np.flatnonzero((hits.depth[0] > depth + 1e-3) & (edge > 1e-3)):
            i, j = int(px[column] * TEXELS), int(py[column] * TEXELS)
            picture = atlas().picture(carpets[(i // TEXELS + j // TEXELS) % 4])
            want = picture[j % TEXELS, i % TEXELS].astype(int) * light // 256
            np.testing.assert_allclose(image[row if below else 63 - row, column], want, atol=1)


@given(inside, inside, angles)
@settings(max_examples=100, deadline=None)
def test_texture_column_is_the_place_on_the_wall(x, y, angle):
    """u grows from left to right for the viewer: with y on walls that look east, against it on those that look west."""
    hits, _ = look(hall(), x, y, angle, 32)
    heading, slope = math.radians(angle), slopes(32)
    px = x + hits.depth[0] * (math.cos(heading) + slope * math.sin(heading))
    py = y + hits.depth[0] * (math.sin(heading) - slope * math.cos(heading))
    along = np.choose(hits.texture[0], [py, -px, -py, px])
    apart = np.abs(hits.u[0] - along % 1)
    assert np.minimum(apart, 1 - apart).max() < 1e-9
    assert (hits.u >= 0).all()
    assert (hits.u < 1).all()


@pytest.mark.parametrize("side", [EAST, NORTH, WEST, SOUTH])
def test_a_panel_is_painted_texel_by_texel_upright_and_unmirrored(side):
    """At the depth where a texel is a pixel, the picture of the wall is the texture times the light."""
    layout, number = hall(columns=((5, 5),)), atlas().number("panel moon")
    layout.face[5, 5, side] = number
    depth = focal(64) / TEXELS
    dx, dy = STEPS[side]
    x, y = 5.5 + dx * (0.5 + depth), 5.5 + dy * (0.5 + depth)
    hits, image = look(layout, x, y, 90 * side + 180)
    assert (hits.texture[0, 16:48] == number).all()
    light = int((GLOOM + (1 - GLOOM) * math.exp(-depth / FOG)) * LIGHT[side] * 256)
    want = atlas().picture("panel moon").astype(int) * light // 256
    np.testing.assert_array_equal(image[16:48, 16:48], want)


@given(st.floats(1.6, 10.4), st.floats(1.6, 3.0), st.floats(-0.9, 0.9))
@settings(max_examples=100, deadline=None)
def test_pillar_depth_is_the_distance_to_its_surface(x, away, tilt):
    """Seen along the ray through the axis: distance minus radius, whatever the column."""
    layout = hall(pillars=(Pillar(6.5, 6.5, 7),))
    y = 6.5 - away
    axis, distance = math.degrees(math.atan2(away, 6.5 - x)), math.hypot(away, 6.5 - x)
    column = round(31.5 + 30 * tilt)
    bearing = math.degrees(math.atan(slopes(64)[column]))
    hits, _ = look(layout, x, y, axis + bearing)
    ray = 1 / math.cos(math.radians(bearing))  # metres of ray per metre of depth
    assert hits.texture[0, column] == 7
    assert hits.depth[0, column] * ray == pytest.approx(distance - PILLAR_RADIUS, rel=1e-9)
    assert hits.slant[0, column] == pytest.approx(1)
    assert hits.light[0, column] == pytest.approx(1)
    turns = math.radians(axis + 180) / (2 * math.pi) * 3  # the texture goes round three times
    apart = (hits.u[0, column] - turns + 0.5) % 1 - 0.5
    assert abs(apart) < 1e-6
    assert (hits.u >= 0).all()
    assert (hits.u <= 1).all()


def test_pillar_hides_nothing_beside_it():
    hits, _ = look(hall(pillars=(Pillar(6.5, 6.5, 7),)), 6.5, 2.5, 90)
    seen = hits.texture[0] == 7
    edge = math.tan(math.asin(PILLAR_RADIUS / 4)) * focal(64)
    assert seen.sum() == sum(abs(c + 0.5 - 32) < edge for c in range(64))
    empty, _ = look(hall(), 6.5, 2.5, 90)
    np.testing.assert_array_equal(hits.depth[0, ~seen], empty.depth[0, ~seen])


@pytest.mark.parametrize("across", ["x", "y"])
def test_door_leaf_slides_aside_and_shows_what_is_behind(across):
    layout = hall(doors=(Door((6, 6), across, 9),))
    x, y, angle = (4.5, 6.5, 0) if across == "x" else (6.5, 4.5, 90)
    closed, half, opened = (look(layout, x, y, angle, 64, opening)[0] for opening in (0.0, 0.5, 1.0))
    place = 0.5 + 2 * slopes(64) * (-1 if across == "x" else 1)  # where each ray crosses the leaf's plane, in the cell
    on_leaf = (place >= 0) & (place < 1)
    np.testing.assert_array_equal(closed.texture[0] == 9, on_leaf)
    np.testing.assert_allclose(closed.depth[0, on_leaf], 2.0)
    assert (closed.light[0, on_leaf] == DOOR_LIGHT).all()
    np.testing.assert_array_equal(half.texture[0] == 9, on_leaf & (place >= 0.5))
    assert not (opened.texture[0] == 9).any()
    left_to_right = np.diff(closed.u[0, on_leaf])
    assert (left_to_right > 0).all()


def test_doors_open_for_the_body_and_close_behind_it():
    scene = stack([hall(doors=(Door((6, 6), "x", 9),))])
    far, near = np.array([[6.5 - REACH - 0.01, 6.5, 0]]), np.array([[6.5 - REACH + 0.01, 6.5, 0]])
    assert settled(scene, far) == 0
    assert settled(scene, near) == 1
    opening, course = np.zeros((1, 1)), []
    for pose in [near] * 9 + [far] * 9:
        opening = slide_doors(scene, pose, opening)
        course.append(opening[0, 0])
    np.testing.assert_array_equal(course, np.array([1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]) / 8)


@pytest.mark.parametrize(("opening", "stop"), [(0.0, 6 - RADIUS), (PASSABLE - 0.01, 6 - RADIUS), (PASSABLE, None)])
def test_a_door_stops_the_body_until_it_is_open(opening, stop):
    scene = stack([hall(doors=(Door((6, 6), "x", 9),))])
    pose = np.array([[6 - RADIUS - 0.05, 6.5, 0.0]])
    after = move(scene, pose, np.full((1, 1), opening), np.array([[0.0, 1.0]]))
    assert after[0, 0] == (pose[0, 0] + STRIDE if stop is None else stop)


steps = st.lists(st.tuples(st.floats(-10, 10, width=32), st.floats(-1, 1, width=32)), min_size=1, max_size=20)


@given(steps, angles)
@settings(max_examples=50, deadline=None)
def test_pose_is_integrated_exactly(actions, angle):
    """In the open: the angle grows by the turn, then the step goes along the new angle."""
    scene, pose = stack([hall()]), np.array([[6.0, 6.0, angle]])
    x, y = 6.0, 6.0
    for turn, forward in actions:
        pose = move(scene, pose, np.zeros((1, 0)), np.array([[turn, forward]]))
        angle = (angle + turn) % 360
        x += STRIDE * forward * math.cos(math.radians(angle))
        y += STRIDE * forward * math.sin(math.radians(angle))
        np.testing.assert_allclose(pose[0], [x, y, angle], rtol=0, atol=1e-12)


@pytest.mark.parametrize("angle", [0, 90, 180, 270])
def test_body_stops_at_its_radius_and_slides(angle):
    """Into a wall at 40 degrees off its normal: the wall's coordinate is exact, the other one goes on."""
    scene = stack([hall()])
    before = pose = np.array([[6.0, 6.0, angle + 40.0]])
    for _ in range(55):
        before, pose = pose, move(scene, pose, np.zeros((1, 0)), np.array([[0.0, 1.0]]))
    ahead, sign = (0, 1, 0, 1)[angle // 90], (1, 1, -1, -1)[angle // 90]
    assert pose[0, ahead] == (HALL - 1 - RADIUS if sign > 0 else 1 + RADIUS)
    assert abs(pose - before)[0, 1 - ahead] == pytest.approx(STRIDE * math.sin(math.radians(40)), rel=1e-9)


def test_nobody_gets_into_walls_doors_or_pillars():
    world = VectorMaze(16, rooms=2, size=16)
    world.reset(seed=7)
    rng = np.random.default_rng(0)
    action = np.zeros((16, 2), np.float32)
    for frame in range(400):
        if frame % 10 == 0:
            action = np.stack([rng.uniform(-8, 8, 16), rng.uniform(-0.3, 1.0, 16)], 1).astype(np.float32)
        world.step(action)
        for layout, (x, y, _) in zip(world.layouts, world.pose, strict=True):
            corners = [(x + a * (RADIUS - 1e-6), y + b * (RADIUS - 1e-6)) for a in (-1, 1) for b in (-1, 1)]
            assert not any(layout.wall[int(i), int(j)] for i, j in corners)
            for pillar in layout.pillars:
                assert math.hypot(pillar.x - x, pillar.y - y) > RADIUS + PILLAR_RADIUS - 1e-9


def test_turning_left_moves_a_landmark_to_the_right():
    """Seen in the pictures alone: the columns that change when the panel is taken off the wall."""
    world, plain = Maze(), Maze()
    world.reset(seed=3)
    plain.reset(seed=3)
    mark, facing = next((mark, mark.facing) for mark in world.landmarks if mark.facing is not None)
    toward = math.radians(facing)
    pose = np.array([mark.x + 0.9 * math.cos(toward), mark.y + 0.9 * math.sin(toward), facing + 180])
    for face in (plain.layout.face, plain._row._scene.face):
        face[face == atlas().number(mark.name)] = atlas().number("corridor")

    def place_in_picture(turn: float) -> float:
        pictures = []
        for one in (world, plain):
            one.place(pose)
            pictures.append(one.step(np.array([turn, 0.0], np.float32))[0]["image"].astype(int))
        changed = np.abs(pictures[0] - pictures[1]).sum((0, 2)) > 0
        return float(np.flatnonzero(changed).mean())

    centre = place_in_picture(0)
    assert abs(centre - 31.5) <= 1
    assert place_in_picture(8) > centre + 4
    assert place_in_picture(-8) < centre - 4
    world.place(pose)
    world.step(np.array([8, 0], np.float32))
    assert world.pose[2] == (facing + 188) % 360


def test_rows_equal_single_worlds_bit_for_bit():
    seeds, frames = [5, 0, 123, 77, 9], 60
    rows = VectorMaze(len(seeds), size=32, depth=True)
    singles = [Maze(size=32, depth=True) for _ in seeds]
    together, _ = rows.reset(seed=seeds)
    apart = [world.reset(seed=seed)[0] for world, seed in zip(singles, seeds, strict=True)]
    rows.behaviour.reset()
    rngs, single_rngs = ([np.random.default_rng(seed) for seed in seeds] for _ in range(2))
    for world in singles:
        world.behaviour.reset()
    for _ in range(frames):
        for name in ("image", "state", "depth"):
            np.testing.assert_array_equal(together[name], np.stack([one[name] for one in apart]))
        actions = rows.behaviour(together, rngs)
        single = [w.behaviour(o, rng) for w, o, rng in zip(singles, apart, single_rngs, strict=True)]
        np.testing.assert_array_equal(actions, np.stack(single))
        together, *_ = rows.step(actions)
        apart = [world.step(action)[0] for world, action in zip(singles, single, strict=True)]
    assert rows.observation_space.contains(together)
    assert singles[0].observation_space.contains(apart[0])


def test_a_seed_decides_everything():
    first, again, other = (VectorMaze(3, size=32) for _ in range(3))
    a, _ = first.reset(seed=40)
    b, _ = again.reset(seed=[40, 41, 42])
    c, _ = other.reset(seed=41)
    np.testing.assert_array_equal(a["image"], b["image"])
    np.testing.assert_array_equal(a["image"][1:], c["image"][:2])
    assert (a["image"][0] != c["image"][0]).any()
    assert first.layouts[0].landmarks != first.layouts[1].landmarks
    with pytest.raises(ValueError, match="2 seeds for 3 rows"):
        first.reset(seed=[1, 2])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_it_is_a_proper_gymnasium_environment():
    check_env(Maze(rooms=2, size=16, depth=True), skip_render_check=True)


def test_home_is_always_the_same_place():
    home = open_world("maze/home", WorldOptions(size=16))
    assert isinstance(home, VectorMaze)
    home.reset(seed=5)
    assert all(layout.landmarks == home.layouts[0].landmarks for layout in home.layouts)
    assert len({tuple(pose) for pose in home.pose}) == home.num_envs


@pytest.mark.parametrize("rooms", [2, 3, 4])
def test_layouts_are_connected_closed_and_full_of_different_landmarks(rooms):
    for seed in range(30):
        layout = generate(seed, rooms)
        wall = layout.wall
        assert wall.shape == (rooms * 6 + 1,) * 2
        assert wall[[0, -1]].all()
        assert wall[:, [0, -1]].all()
        todo, reached = [tuple(np.argwhere(~wall)[0])], set()
        while todo:
            x, y = todo.pop()
            if (x, y) not in reached and not wall[x, y]:
                reached.add((x, y))
                todo += [(x + dx, y + dy) for dx, dy in STEPS]
        assert len(reached) == (~wall).sum()
        names = [mark.name for mark in layout.landmarks]
        assert len(set(names)) == len(names)
        assert {mark.room for mark in layout.landmarks} == set(range(rooms**2))
        for door in layout.doors:
            (x, y), side = door.cell, (0, 1) if door.across == "x" else (1, 0)
            assert wall[x + side[0], y + side[1]]
            assert wall[x - side[0], y - side[1]]
            assert not wall[x, y]
        shown = [
            {
                layout.face[x + dx, y + dy, (s + 2) % 4]
                for x, y in np.argwhere(layout.room == k)
                for s, (dx, dy) in enumerate(STEPS)
                if wall[x + dx, y + dy]
            }
            for k in range(rooms**2)
        ]
        for k, one in enumerate(shown):
            assert not any(one & other for other in shown[:k])  # no two rooms share a wall or a sign


def test_landmarks_are_where_they_are_listed():
    world = VectorMaze(4, size=64)
    world.reset(seed=0)
    for row, marks in enumerate(world.landmarks):
        for mark in marks:
            sides = [mark.facing] if mark.facing is not None else [0, 90, 180, 270]
            for side in sides:
                toward = math.radians(side)
                pose = world.pose
                pose[row] = mark.x + 0.8 * math.cos(toward), mark.y + 0.8 * math.sin(toward), side + 180
                world.place(pose)
                hits = cast(world._scene, world._pose, world._opening, 64)
                assert {atlas().names[k] for k in hits.texture[row, 30:34]} == {mark.name}
                gap = 0.8 - (PILLAR_RADIUS if mark.facing is None else 0)
                assert hits.depth[row, 31] == pytest.approx(gap, abs=1e-3)


def test_mip_levels_keep_the_mean_colour():
    """Every level is the average of the one before; only the rounding of both to 8 bits remains."""
    textures = atlas()
    assert len(set(textures.names)) == len(textures.names)
    means = []
    for level in range(LEVELS):
        side = TEXELS >> level
        start = textures.offset[level]
        texels = textures.texels[start : start + len(textures.names) * side**2].view(np.uint8)
        means.append(texels.reshape(len(textures.names), side**2, 4)[..., :3].mean(1))
    for mean in means[1:]:
        assert np.abs(mean - means[0]).max() <= 1


def test_the_explorer_turns_both_ways_moves_and_visits():
    world = VectorMaze(24, size=16)
    observation, _ = world.reset(seed=500)
    world.behaviour.reset()
    rngs = [np.random.default_rng(seed) for seed in range(24)]
    poses, actions = [], []
    for _ in range(500):
        action = world.behaviour(observation, rngs)
        assert world.action_space.contains(action)
        poses.append(world.pose)
        actions.append(action)
        observation, *_ = world.step(action)
    turn, forward = np.concatenate(actions).T
    assert abs(np.corrcoef(turn, forward)[0, 1]) < 0.1
    assert abs(np.mean(turn > 1) - np.mean(turn < -1)) < 0.1
    assert np.mean(np.abs(turn) > 1) > 0.4
    assert np.mean(forward > 0.3) > 0.4
    assert np.mean(forward < -0.3) > 0.03
    rooms = [
        {int(w.room[int(x), int(y)]) for x, y, _ in path} - {-1}
        for w, path in zip(world.layouts, np.swapaxes(poses, 0, 1), strict=True)
    ]
    assert np.mean([len(visited) for visited in rooms]) > 3
    step = np.hypot(*np.diff(poses, axis=0)[..., :2].transpose(2, 0, 1))
    pushing = np.abs(np.stack(actions)[:-1, :, 1]) > 0.3
    assert np.mean(step[pushing] < 0.01) < 0.08  # seldom at a wall


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("maze/huge", WorldOptions(), "unknown world 'maze/huge'"),
        ("maze", WorldOptions(camera="top"), "one camera"),
        ("maze", WorldOptions(policy="expert"), "policies explore and revisit, not 'expert'"),
        ("maze", WorldOptions(size=33), "even number, not 33"),
        ("maze", WorldOptions(size=8), "16 to 256"),
    ],
)
def test_what_it_does_not_offer_is_one_clear_line(name, options, message):
    with pytest.raises(UserError, match=message):
        open_world(name, options)
