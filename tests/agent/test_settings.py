from __future__ import annotations

from pathlib import Path

import pytest

from m3agent.errors import M3Error
from m3agent.settings import load_settings


def test_options_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('model = "from-file"\nmax_steps = 7\n')
    env = {"M3_HOME": str(tmp_path)}
    assert load_settings(environ=env).model == "from-file"
    assert load_settings(environ={**env, "M3_MODEL": "from-env"}).model == "from-env"
    chosen = load_settings(environ={**env, "M3_MODEL": "from-env"}, model="chosen", max_steps=None)
    assert (chosen.model, chosen.max_steps) == ("chosen", 7)


def test_without_a_choice_the_embedded_model_answers(tmp_path: Path) -> None:
    settings = load_settings(environ={"M3_HOME": str(tmp_path / "new")})
    assert settings.model == "nano"
    assert settings.sessions_dir == tmp_path / "new" / "sessions"
    assert not (tmp_path / "new").exists()


def test_prompts_of_nano_are_kept_only_when_asked_for(tmp_path: Path) -> None:
    env = {"M3_HOME": str(tmp_path)}
    assert load_settings(environ=env).disk_cache_bytes == 0
    assert load_settings(environ=env, model="/models/m3").disk_cache_bytes == 50 * 10**9
    (tmp_path / "config.toml").write_text("disk_cache_gb = 0.5\n")
    assert load_settings(environ=env).disk_cache_bytes == 500_000_000
    assert load_settings(environ=env).prefixes_dir == tmp_path / "cache" / "prefixes"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model = ", "cannot be read"),
        ('modle = "x"', "no setting 'modle'"),
        ("model = 3", "must be text"),
        ('max_steps = "3"', "must be a number"),
        ("max_steps = true", "must be a number"),
        ("max_steps = 0", "greater than 0"),
        ("temperature = 3", "between 0 and 2"),
        ("disk_cache_gb = -1", "between 0 and 1,000,000"),
        ("disk_cache_gb = nan", "between 0 and 1,000,000"),
        ('model = " "', "no model is chosen"),
        ('device = "tpu"', "auto, cpu or cuda"),
        ('cuda_graphs = "no"', "true or false"),
        ('experts = "gpu"', "auto or cpu"),
        ("expert_bits = 8", "16 or 4"),
    ],
)
def test_a_bad_config_file_is_one_line_that_says_what_to_mend(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(M3Error, match=problem) as caught:
        load_settings(environ={"M3_HOME": str(tmp_path)})
    assert caught.value.exit_code == 2


def test_commands_of_the_model_get_no_credentials(tmp_path: Path) -> None:
    secrets = {name: "s3cret" for name in ("GH_TOKEN", "OPENAI_API_KEY", "M3_API_KEY", "DB_PASSWORD", "aws_secret_key")}
    settings = load_settings(environ={"M3_HOME": str(tmp_path), "PATH": "/bin", **secrets})
    assert settings.command_environment["PATH"] == "/bin"
    assert "s3cret" not in settings.command_environment.values()
    assert "s3cret" not in repr(settings.command_environment)
    assert (settings.forges[0].token, settings.api_key) == ("s3cret", "s3cret")


def test_the_key_is_not_in_the_text_of_the_settings(tmp_path: Path) -> None:
    assert "s3cret" not in repr(load_settings(environ={"M3_HOME": str(tmp_path), "M3_API_KEY": "s3cret"}))
