"""Models trained side by side: what each makes, its gradients, and its weights."""

import torch
from test_one_step import fields, small_fno
from tiny import close

from worldmodel.models.together import Together


def test_each_model_sees_its_own_rows_with_its_own_weights():
    models, x = [small_fno(seed) for seed in (3, 4, 5)], fields(6, 1).x[:, 0]
    both = Together(models)
    made = both(x)
    expected = torch.cat([model(rows) for model, rows in zip(models, x.chunk(3), strict=True)])
    close(made, expected, 1e-6)
    assert both.frame_shape == models[0].frame_shape and both.chunk == 1


def test_gradients_and_weights_are_those_of_each_alone():
    models, x = [small_fno(seed) for seed in (3, 4)], fields(4, 1).x[:, 0]
    both = Together(models)
    (both(x).square().mean() * both.count).backward()
    for n, (model, rows) in enumerate(zip(models, x.chunk(2), strict=True)):
        model(rows).square().mean().backward()
        own = dict(model.named_parameters())
        found = {key.replace("/", "."): p.grad[n] for key, p in both.named_parameters()}
        assert found.keys() == own.keys()
        for name, p in own.items():
            close(found[name], p.grad, 1e-5)
        state = both.states()[n]
        assert all(torch.equal(state[name], p) for name, p in own.items())
        model.load_state_dict(state)  # all of it, and nothing else


def test_a_copy_is_another_one():
    both = Together([small_fno(3), small_fno(4)])
    with torch.no_grad():
        next(iter(both.parameters())).add_(1.0)
    assert not torch.equal(both(fields(2, 1).x[:, 0])[:1], small_fno(3)(fields(2, 1).x[:1, 0]))
    assert len(list(both.modules())) == 1  # the model whose operations are used is no part of it
