"""Small policies of lerobot, trained a few steps on demonstrations of ours, as lerobot-train does it."""

from pathlib import Path
from typing import Any

import torch

SIZES = {
    "act": {
        "chunk_size": 8,
        "n_action_steps": 4,
        "dim_model": 16,
        "n_heads": 2,
        "dim_feedforward": 32,
        "n_encoder_layers": 1,
        "n_vae_encoder_layers": 1,
        "latent_dim": 4,
        "pretrained_backbone_weights": None,
    },
    "diffusion": {
        "n_obs_steps": 2,
        "horizon": 8,
        "n_action_steps": 4,
        "down_dims": (8, 16),
        "n_groups": 4,
        "kernel_size": 3,
        "diffusion_step_embed_dim": 8,
        "spatial_softmax_num_keypoints": 4,
        "num_train_timesteps": 10,
        "num_inference_steps": 3,
        "crop_ratio": 1.0,
        "use_group_norm": True,
        "pretrained_backbone_weights": None,
    },
    "vqbet": {
        "n_obs_steps": 3,
        "n_action_pred_token": 2,
        "action_chunk_size": 4,
        "gpt_block_size": 40,
        "gpt_input_dim": 16,
        "gpt_output_dim": 16,
        "gpt_n_layer": 1,
        "gpt_n_head": 2,
        "gpt_hidden_dim": 16,
        "vqvae_n_embed": 4,
        "vqvae_embedding_dim": 8,
        "vqvae_enc_hidden_dim": 8,
        "spatial_softmax_num_keypoints": 4,
        "crop_shape": None,
        "use_group_norm": True,
        "pretrained_backbone_weights": None,
    },
}


def train_lerobot(kind: str, data: Path, folder: Path, steps: int = 2, **changed: Any) -> Path:
    """Train a policy of lerobot and save it with its processors. Returns the folder."""
    from lerobot.configs.types import FeatureType
    from lerobot.datasets import LeRobotDataset
    from lerobot.policies import get_policy_class, make_policy_config, make_pre_post_processors
    from lerobot.utils.feature_utils import dataset_to_policy_features

    torch.manual_seed(0)
    config: Any = make_policy_config(kind, device="cpu", push_to_hub=False, **{**SIZES[kind], **changed})
    whole = LeRobotDataset("local/data", root=data)
    features = dataset_to_policy_features(whole.meta.features)
    config.output_features = {key: f for key, f in features.items() if f.type is FeatureType.ACTION}
    config.input_features = {key: f for key, f in features.items() if key not in config.output_features}
    policy = get_policy_class(kind)(config)
    pipelines = make_pre_post_processors(config, dataset_stats=whole.meta.stats)
    stamps = {"action": [i / whole.meta.fps for i in config.action_delta_indices]}
    for key in config.input_features if config.observation_delta_indices else ():
        stamps[key] = [i / whole.meta.fps for i in config.observation_delta_indices]
    dataset = LeRobotDataset("local/data", root=data, delta_timestamps=stamps, video_backend="pyav")
    optimizer = config.get_optimizer_preset().build(policy.get_optim_params())
    policy.train()
    for step in range(steps):
        samples = [dataset[(5 * step + i) % len(dataset)] for i in range(4)]
        batch = torch.utils.data.default_collate(samples)
        loss, _ = policy.forward(pipelines[0](batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    policy.eval().save_pretrained(folder)
    for pipeline in pipelines:
        pipeline.save_pretrained(folder)
    return folder
