"""Shapes against the parameter counts that the models' authors publish."""

from __future__ import annotations

import pytest

from genie.workload import models
from genie.workload.shapes import active_parameters, parameters


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # Exact counts of the released checkpoints (sum of tensor sizes in the safetensors index).
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_exact_counts(name: str, published: int) -> None:
    assert parameters(models.model(name)) == published


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        # Billions as the reports give them: arXiv 2005.14165, 2401.04088 (47 B, 13 B active),
        # 2412.19437 (671 B, 37 B), 2505.09388 (235 B, 22 B).
        ("gpt3-175b", 175, 175),
        ("mixtral-8x7b", 47, 13),
        ("deepseek-v3", 671, 37),
        ("qwen3-235b-a22b", 235, 22),
    ],
)
def test_reported_counts(name: str, total: int, active: int) -> None:
    model = models.model(name)
    assert round(parameters(model) / 1e9) == total
    # "Active" is counted with or without the input embedding; both round to the reported figure
    # but DeepSeek-V3's, whose 37 B leave it out (36.7 B with the output head).
    assert abs(active_parameters(model) / 1e9 - active) < 1
