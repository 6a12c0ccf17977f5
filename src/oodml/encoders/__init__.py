"""Encoders that are not trained here: published networks, an untrained backbone, embeddings from elsewhere."""

from oodml.encoders.published import PUBLISHED, evaluate_pretrained
from oodml.encoders.score import FORMS, EncoderScore, score_encoder

__all__ = ["FORMS", "PUBLISHED", "EncoderScore", "evaluate_pretrained", "score_encoder"]
