"""The numbers that define the image side of a model, read from a released config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """A vision tower with its projector and merger, checked when built.

    Errors: ValueError that names the field and what was expected.
    """

    hidden_size: int
    """Width of the tower."""
    num_layers: int
    """Layers of the tower."""
    num_heads: int
    """Attention heads of the tower."""
    intermediate_size: int
    """Width of the tower's feed-forward parts."""
    projector_size: int
    """Width inside the projector and inside the merger."""
    patch_size: int = 14
    """Height and width of a patch, in pixels."""
    temporal_patch_size: int = 2
    """Frames of a patch; an image counts as so many equal frames."""
    merge_size: int = 2
    """Patches on each side of the square that becomes one token."""
    segment_size: int = 4
    """Patches in time that attend to each other; those of a longer video are cut into such segments."""
    image_size: int = 2016
    """Longest side of an image, in pixels, where no other rule is chosen."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""
    layer_norm_eps: float = 1e-5
    """Added to the variance in every norm."""
    image_token_id: int
    """The token that stands in a prompt for a part of an image."""
    video_token_id: int
    """The token that stands in a prompt for a part of a video."""

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "num_heads", "patch_size", "merge_size", "segment_size"):
            _require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        _require(
            self.hidden_size % self.num_heads == 0,
            f"hidden_size {self.hidden_size} must be a multiple of num_heads {self.num_heads}",
        )
        _require(
            self.token_size <= self.image_size <= 3584,
            f"image_size must be {self.token_size} to 3584 pixels, got {self.image_size}",
        )
        _require(self.axis_frequencies > 0, f"heads of {self.head_dim} dimensions have no room for three axes")

    @property
    def head_dim(self) -> int:
        """Dimensions of a head."""
        return self.hidden_size // self.num_heads

    @property
    def axis_frequencies(self) -> int:
        """Rotated pairs for each of time, height and width; the head's last dimensions may be left over."""
        return self.head_dim // 3 // 2

    @property
    def patch_values(self) -> int:
        """Numbers of a patch: colours, frames and pixels."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @property
    def token_size(self) -> int:
        """Height and width of the pixels behind one token; sides of a resized image are multiples of it."""
        return self.patch_size * self.merge_size

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "VisionConfig | None":
        """Read a released config.json; None if it has no vision_config.

        Errors: ValueError for a missing key or for a variant that this tower does not compute.
        """
        vision = data.get("vision_config")
        if vision is None:
            return None
        compression = vision.get("img_token_compression_config") or data.get("img_token_compression_config") or {}

        def need(part: Mapping[str, Any], key: str) -> Any:
            if key not in part:
                raise ValueError(f"config.json has a vision_config, but no {key!r}; is this an M3 checkpoint?")
            return part[key]

        _refuse_other_variants(data, vision, compression)
        return cls(
            hidden_size=int(need(vision, "hidden_size")),
            num_layers=int(need(vision, "num_hidden_layers")),
            num_heads=int(need(vision, "num_attention_heads")),
            intermediate_size=int(need(vision, "intermediate_size")),
            projector_size=int(need(data, "projector_hidden_size")),
            patch_size=int(vision.get("patch_size", 14)),
            temporal_patch_size=int(compression.get("temporal_patch_size", vision.get("temporal_patch_size", 2))),
            merge_size=int(compression.get("spatial_merge_size", vision.get("spatial_merge_size", 2))),
            segment_size=int(vision.get("vision_segment_max_frames", 4)),
            image_size=int(vision.get("image_size", 2016)),
            rope_theta=float(vision.get("rope_theta", 10000.0)),
            layer_norm_eps=float(vision.get("layer_norm_eps", 1e-5)),
            image_token_id=int(need(data, "image_token_index")),
            video_token_id=int(need(data, "video_token_index")),
        )

    def to_json(self) -> dict[str, Any]:
        """What config.json says about the image side, with the key names of the release."""
        compression = {
            "image_token_compression_method": "patch_merge",
            "spatial_merge_size": self.merge_size,
            "temporal_patch_size": self.temporal_patch_size,
        }
        return {
            "image_token_index": self.image_token_id,
            "video_token_index": self.video_token_id,
            "img_token_compression_config": compression,
            "multimodal_projector_bias": True,
            "process_image_mode": "dynamic_res",
            "projector_hidden_act": "gelu",
            "projector_hidden_size": self.projector_size,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": self.hidden_size,
                "num_hidden_layers": self.num_layers,
                "num_attention_heads": self.num_heads,
                "intermediate_size": self.intermediate_size,
                "hidden_act": "gelu",
                "num_channels": 3,
                "patch_size": self.patch_size,
                "image_size": self.image_size,
                "position_embedding_type": "rope",
                "rope_mode": "3d",
                "rope_theta": self.rope_theta,
                "layer_norm_eps": self.layer_norm_eps,
                "attention_dropout": 0.0,
                "vision_segment_max_frames": self.segment_size,
                "img_token_compression_config": compression,
            },
        }


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"vision config: {message}")


def _refuse_other_variants(data: Mapping[str, Any], vision: Mapping[str, Any], compression: Mapping[str, Any]) -> None:
    """Settings that change the computation must have the value that this tower implements, where they are given."""
    for part, key, value in (
        (vision, "hidden_act", "gelu"),
        (vision, "num_channels", 3),
        (vision, "position_embedding_type", "rope"),
        (vision, "rope_mode", "3d"),
        (compression, "image_token_compression_method", "patch_merge"),
        (data, "multimodal_projector_bias", True),
        (data, "process_image_mode", "dynamic_res"),
        (data, "projector_hidden_act", "gelu"),
        (data, "vision_feature_layer", -1),
        (data, "vision_feature_select_strategy", "full"),
    ):
        found = part.get(key, value)
        if found != value:
            raise ValueError(f"config.json: {key} is {found!r}; this vision tower computes only {value!r}")
