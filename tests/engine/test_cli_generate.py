"""python -m engine generate, as people use it."""

from pathlib import Path

from engine.__main__ import main

FOLDER = str(Path(__file__).parents[1] / "golden/llama/llama_tied_gqa")  # no tokenizer
ARGUMENTS = ["generate", FOLDER, "--ids", "1,2,3", "--max-tokens", "5", "--gpus", "0"]


def test_token_ids_are_printed_where_there_is_no_tokenizer(capsys):
    assert main(ARGUMENTS) == 0
    shown = capsys.readouterr()
    assert shown.out == "240 233 133 133 133 \n"
    assert f"{FOLDER} has no tokenizer: neither tokenizer.json nor tokenizer.model is there. Token ids are printed.\n" in shown.err


def test_stop_strings_need_a_tokenizer(capsys):
    assert main([*ARGUMENTS, "--stop", "x"]) == 1
    shown = capsys.readouterr()
    assert f"error: Stop strings need a tokenizer. {FOLDER} has no tokenizer" in shown.err and shown.out == ""
