"""The options that say how large a model is: the same for training and translating."""

import argparse

from mixture import CHOICES
from translation_model import Sizes


def add(parser: argparse.ArgumentParser) -> None:
    """Adds them to a command line."""
    defaults = Sizes(vocabulary=0)
    for name, meaning in (
        ("width", "of what flows between the layers"),
        ("heads", "of attention"),
        ("hidden", "units of a feed-forward network, also of each expert"),
        ("layers", "of the encoder, and as many of the decoder"),
        ("experts", "networks of a mixture"),
        ("every", "each so many-th layer has a mixture; 0: none"),
    ):
        default = getattr(defaults, name)
        parser.add_argument("--" + name, type=int, default=default, help=meaning + " (default: %(default)s)")
    parser.add_argument("--gate", choices=sorted(CHOICES), default=defaults.gate, help="(default: %(default)s)")
    parser.add_argument(
        "--capacity_factor",
        type=float,
        default=defaults.capacity_factor,
        help="an expert has room for so many times its share of the pieces of a sentence (default: %(default)s)",
    )


def sizes_of(options: argparse.Namespace, vocabulary: int) -> Sizes:
    """Returns what the options say; without an option of that name nothing is dropped."""
    given = {name: getattr(options, name) for name in Sizes._fields if hasattr(options, name)}
    return Sizes(**dict({"dropout": 0.0}, vocabulary=vocabulary, **given))
