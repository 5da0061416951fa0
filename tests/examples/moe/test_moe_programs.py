"""What is made of a trained checkpoint: a measure, and a SavedModel that translates. The commands for pairs of WMT."""

import argparse
import os
import re
import subprocess

import export_translation
import model_options
import prepare_pairs
import pytest
import sentence_pairs
import tensorflow.compat.v1 as tf
import train_translation
import translate
import translate_sentence

SIZES = ["--width", "8", "--heads", "2", "--hidden", "8", "--layers", "2", "--experts", "2"]


@pytest.fixture
def trained(tmp_path):
    """Options of a model with random weights: the folder of its pairs, its checkpoint, the text."""
    text = tmp_path / "pairs.txt"
    text.write_text("A house.\tEin Haus.\nThe old house!\tDas alte Haus!\n", encoding="utf-8")
    pairs = str(tmp_path / "pairs")
    prepare_pairs.main(["--pairs", str(text), "--output", pairs, "--vocabulary_size", "60"])
    parser = argparse.ArgumentParser()
    model_options.add(parser)
    read = translate.read_pairs(pairs, str(text), [1, 2])
    sizes = model_options.sizes_of(parser.parse_args(SIZES), len(read.known))
    tf.set_random_seed(1)
    translate.build(sizes, read.lengths)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    return pairs, str(tmp_path / "model.ckpt"), str(text)


def test_a_saved_model_translates_as_its_checkpoint(trained, tmp_path, capsys):
    pairs, checkpoint, text = trained
    saved, output = str(tmp_path / "saved"), str(tmp_path / "translations.txt")
    export_translation.main(["--pairs", pairs, "--checkpoint", checkpoint, "--output", saved] + SIZES)
    with tf.Graph().as_default():
        translate.main(["--pairs", pairs, "--checkpoint", checkpoint, "--text", text, "--output", output] + SIZES)
    capsys.readouterr()
    translate_sentence.main(["--saved_model", saved, "A house.", "The old house!"])
    with open(output, encoding="utf-8") as source:
        assert capsys.readouterr().out == source.read()


def test_training_measures_as_translate_does(trained, tmp_path):
    pairs, checkpoint, text = trained
    options = ["--pairs", pairs, "--output", str(tmp_path / "out"), "--eval_pairs", text, "--batch_size", "1"]
    measured = train_translation.evaluation(train_translation.parse(options + SIZES))(checkpoint)
    asked = translate_options(pairs, checkpoint, text, str(tmp_path / "t"))
    with tf.Graph().as_default():
        assert measured == {"pieces_right": translate.run(asked)["pieces_right"]}


def translate_options(pairs, checkpoint, text, output):
    parser = argparse.ArgumentParser()
    model_options.add(parser)
    options = parser.parse_args(SIZES)
    vars(options).update(pairs=pairs, checkpoint=checkpoint, text=text, output=output, columns=[1, 2], batch_size=2)
    return options


def test_the_commands_for_wmt_leave_out_what_is_no_pair(moe_folder, tmp_path):
    corpora = ["training-parallel-nc-v13/news-commentary-v13", "commoncrawl", "training/europarl-v7"]
    for number, corpus in enumerate([f"{name}.de-en" for name in corpora] + ["dev/newstest2013"]):
        (tmp_path / os.path.dirname(corpus)).mkdir(exist_ok=True)
        (tmp_path / f"{corpus}.en").write_text(f"House {number}.\n\nNo\ttab\nMine\r\n", encoding="utf-8")
        (tmp_path / f"{corpus}.de").write_text(f"Haus {number}.\nLeer\nKein\n...\n", encoding="utf-8")
    with open(os.path.join(moe_folder, "README.md"), encoding="utf-8") as source:
        commands = re.findall(r"^(?:join|for corpus).*$", source.read(), re.MULTILINE)
    assert len(commands) == 3
    subprocess.run(["bash", "-euc", "\n".join(commands)], cwd=str(tmp_path), check=True)
    assert list(sentence_pairs.read(str(tmp_path / "wmt.tsv"))) == [(f"House {n}.", f"Haus {n}.") for n in range(3)]
    assert list(sentence_pairs.read(str(tmp_path / "newstest2013.tsv"))) == [("House 3.", "Haus 3.")]
