from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base import installation
from orchestrator.domain.errors import BadRequest, SettingError
from orchestrator.home import setting_sources
from orchestrator.home.directory import home_directory
from orchestrator.home.settings import RETENTION_DAYS, changed_since, known_names, load


@pytest.fixture
def home(tmp_path):
    return tmp_path


def write(home, *, toml="", env=""):
    (home / "andy.toml").write_text(toml, encoding="utf-8")
    (home / ".env").write_text(env, encoding="utf-8")


def refusal(home, environment=None, **overrides):
    with pytest.raises(SettingError) as caught:
        load(home, environment or {}, **overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_without_files_the_defaults_hold(home):
    settings = load(home, {})

    assert (settings.assistant_name, settings.max_concurrent_containers) == ("Andy", 5)
    assert (settings.idle_timeout, settings.container_timeout) == (1_800_000, 1_800_000)


def test_each_source_goes_before_the_one_below_it(home):
    write(home, toml="andy_port = 1\nidle_timeout = 1001\ntz = 'UTC'\nandy_model = 'toml'",
          env="IDLE_TIMEOUT=2002\nTZ=Asia/Seoul\nANDY_MODEL=env")  # fmt: skip

    settings = load(home, {"TZ": "Europe/Berlin", "ANDY_MODEL": "environment"}, andy_model="override")

    assert settings.andy_port == 1
    assert settings.idle_timeout == 2002
    assert settings.zone.key == "Europe/Berlin"
    assert settings.andy_model == "override"


@pytest.mark.parametrize(
    ("toml", "env", "environment"),
    [
        ("", "", {}),
        ("tz = 'Asia/Seoul'", "", {}),
        ("TZ = 'Asia/Seoul'", "TZ=Europe/Berlin", {}),
        ("tz = 'Asia/Seoul'", "TZ=\nandy_port=1", {"TZ": ""}),
        ("tz = 'Asia/Seoul'", "tz='Europe/Berlin'", {"TZ": "America/New_York", "tz": ""}),
        ("", "export TZ=Europe/Berlin", {"PATH": "/bin"}),
    ],
)
def test_the_zone_that_commands_read_alone_is_the_one_of_the_settings(home, toml, env, environment):
    write(home, toml=toml, env=env)

    assert setting_sources.zone(home, environment) == load(home, environment).zone


@pytest.mark.parametrize(
    ("toml", "env"), [("tz = 5", ""), ("tz = ''", ""), ("", "TZ=Europe/Nowhere"), ("tz = = 1", "")]
)
def test_a_zone_that_is_none_is_refused_in_the_same_words(home, toml, env):
    write(home, toml=toml, env=env)

    with pytest.raises(SettingError) as caught:
        setting_sources.zone(home, {})

    assert str(caught.value) == refusal(home)


def test_names_count_in_any_case_in_the_file(home):
    write(home, toml="ASSISTANT_NAME = 'Ann'\ntz = 'Asia/Seoul'")

    assert load(home, {}).assistant_name == "Ann"


def test_an_override_of_none_and_an_empty_variable_say_nothing(home):
    write(home, toml="andy_port = 1", env="ANDY_PORT=\n")

    assert load(home, {"ANDY_PORT": ""}, andy_port=None).andy_port == 1


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('ASSISTANT_NAME="Ann B"', "Ann B"),
        ("ASSISTANT_NAME='Ann B'", "Ann B"),
        ("ASSISTANT_NAME=Ann # a comment", "Ann"),
        ("export ASSISTANT_NAME=Ann", "Ann"),
        ("  ASSISTANT_NAME = Ann  ", "Ann"),
        ("ASSISTANT_NAME=앤디", "앤디"),
        ("ASSISTANT_NAME='${HOME}'", "${HOME}"),
        ("\ufeffASSISTANT_NAME=Ann", "Ann"),
    ],
)
def test_values_in_dotenv_may_be_quoted(home, line, name):
    write(home, env=line)

    assert load(home, {}).assistant_name == name


def test_credentials_and_others_in_dotenv_are_not_ours_to_judge(home):
    write(home, env="ANTHROPIC_API_KEY=sk-1\nCLAUDE_CODE_OAUTH_TOKEN=x\nOTHER=1\nEMPTY\n# a comment")

    assert load(home, {"ANTHROPIC_API_KEY": "sk-2", "PATH": "/bin"}) == load(home, {})


def test_the_home_itself_is_no_setting(home):
    write(home, env="ANDY_HOME=/elsewhere")

    assert load(home, {"ANDY_HOME": "/elsewhere"}).andy_port == 8700


@pytest.mark.parametrize(
    "toml", ["assistant = 'x'", "ANTHROPIC_API_KEY = 'x'", "[andy]\nport = 1", "ANDY_HOME = '/x'"]
)
def test_an_unknown_key_in_the_toml_is_named_with_the_file_and_those_there_are(home, toml):
    write(home, toml=toml)

    text = refusal(home)

    assert f"{home / 'andy.toml'}" in text
    assert toml.strip("[").split()[0].strip("]") in text
    assert "ASSISTANT_NAME" in text


def test_an_unknown_andy_key_in_dotenv_is_named_with_the_file(home):
    write(home, env="ANDY_PROT=1")

    text = refusal(home)

    assert f"{home / '.env'}" in text
    assert "ANDY_PROT" in text
    assert "ANDY_PORT" in text


def test_a_slip_in_the_name_of_a_setting_is_no_secret_default(home):
    write(home, env="ASISTANT_NAME=Bo\nMAX_CONCURRENT_CONTAINER=2")

    assert refusal(home) == f"{home / '.env'}: 'ASISTANT_NAME' is no setting. Did you mean ASSISTANT_NAME?"


def test_a_name_of_the_environment_that_is_nearly_ours_may_be_somebody_elses(home):
    assert load(home, {"IDLE_TIMEOUTS": "5"}) == load(home, {})


def test_an_unknown_andy_key_in_the_environment_is_named(home):
    text = refusal(home, {"ANDY_PROT": "1"})

    assert text.startswith("the environment: 'ANDY_PROT'")


@pytest.mark.parametrize(
    ("toml", "key", "value"),
    [
        ("max_concurrent_containers = 0", "MAX_CONCURRENT_CONTAINERS", "0"),
        ("max_concurrent_containers = 'many'", "MAX_CONCURRENT_CONTAINERS", "many"),
        ("idle_timeout = 5", "IDLE_TIMEOUT", "5"),
        ("tz = 'Mars/Phobos'", "TZ", "Mars/Phobos"),
        ("tz = '../../etc/passwd'", "TZ", "passwd"),
        ("assistant_name = '<b>'", "ASSISTANT_NAME", "<b>"),
        ("assistant_name = ' '", "ASSISTANT_NAME", "' '"),
        ("assistant_name = 5", "ASSISTANT_NAME", "5"),
        ("andy_runtime = 'podman'", "ANDY_RUNTIME", "podman"),
        ("andy_port = 70000", "ANDY_PORT", "70000"),
        ("andy_log_level = 'loud'", "ANDY_LOG_LEVEL", "loud"),
    ],
)
def test_a_bad_value_names_file_key_and_what_it_is(home, toml, key, value):
    write(home, toml=toml)

    text = refusal(home)

    assert text.startswith(f"{home / 'andy.toml'}: {key}: ")
    assert value in text


def test_a_bad_value_is_laid_to_the_source_it_came_from(home):
    write(home, toml="andy_port = 1", env="ANDY_PORT=x")

    assert refusal(home).startswith(f"{home / '.env'}: ANDY_PORT")
    assert refusal(home, {"ANDY_PORT": "y"}).startswith("the environment: ANDY_PORT")
    assert refusal(home, {}, andy_port=-1).startswith("the command line: ANDY_PORT")


@pytest.mark.parametrize("toml", ["not toml", "a = ", "tz = 'UTC'\ntz = 'UTC'", 'x = "\n"'])
def test_a_broken_toml_is_one_line_that_names_the_file(home, toml):
    write(home, toml=toml)

    assert refusal(home).startswith(f"{home / 'andy.toml'} cannot be read")


@pytest.mark.parametrize("name", ["andy.toml", ".env"])
def test_a_file_that_is_no_text_is_one_line_that_names_it(home, name):
    (home / name).write_bytes(b"\xff\xfe\x00TZ")

    assert refusal(home).startswith(f"{home / name} cannot be read")


def test_an_unknown_override_is_named(home):
    assert "ANDY_PROT" in refusal(home, {}, andy_prot=1)


def test_the_home_is_the_argument_else_the_variable_else_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert home_directory(Path("x"), {"ANDY_HOME": "/y"}) == tmp_path / "x"
    assert home_directory(None, {"ANDY_HOME": "/y"}) == Path("/y")
    assert home_directory(None, {"ANDY_HOME": ""}) == tmp_path
    assert home_directory(Path("~"), {}) == Path.home()


@pytest.mark.parametrize("named", ["a", "a/home"])
def test_a_home_that_is_a_link_in_a_circle_is_refused(tmp_path, named):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(BadRequest, match=f"{tmp_path / named} is behind links that lead in a circle"):
        home_directory(None, {"ANDY_HOME": str(tmp_path / named)})


@pytest.mark.parametrize("mark", ["store/messages.db", "container/Dockerfile"])
def test_an_installed_andy_lives_by_the_xdg_rules_but_where_a_home_or_a_clone_is(tmp_path, monkeypatch, mark):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(installation, "clone", lambda: None)

    assert home_directory(None, {"XDG_DATA_HOME": "/data"}) == Path("/data/andy")
    assert home_directory(None, {"XDG_DATA_HOME": "not/whole"}) == Path.home() / ".local/share/andy"
    assert home_directory(None, {}) == Path.home() / ".local/share/andy"
    (tmp_path / mark).parent.mkdir()
    (tmp_path / mark).touch()
    assert home_directory(None, {}) == tmp_path


def test_every_setting_is_listed_and_described():
    from orchestrator.home.settings import Settings

    assert known_names() == sorted(name.upper() for name in Settings.model_fields)
    assert all(field.description for field in Settings.model_fields.values())


def test_how_long_what_is_over_is_kept_is_set_by_table_beside_the_usual(home: Path) -> None:
    assert load(home, {}).andy_retention == RETENTION_DAYS
    (home / "andy.toml").write_text("[andy_retention]\nnotifications = 90\n")
    assert load(home, {}).andy_retention == RETENTION_DAYS | {"notifications": 90}
    told = load(home, {"ANDY_RETENTION": '{"messages": 730}'})
    assert told.andy_retention == RETENTION_DAYS | {"messages": 730}


PRICES = '[andy_prices."glm-5"]\ninput = 0.6\noutput = 2.2\n'


def test_prices_are_read_from_a_table_and_from_json(home):
    write(home, toml=PRICES)
    assert load(home, {}).andy_prices["glm-5"].output == 2.2

    told = load(home, {"ANDY_PRICES": '{"own": {"input": 0, "output": 1, "cache_read": 0}}'}).andy_prices
    assert list(told) == ["own"]
    assert (told["own"].cache_read, told["own"].cache_write) == (0, None)


@pytest.mark.parametrize(
    ("toml", "place"),
    [
        (PRICES.replace("0.6", "-1"), "ANDY_PRICES.glm-5.input"),
        (PRICES.replace("0.6", "nan"), "ANDY_PRICES.glm-5.input"),
        (PRICES.replace("output = 2.2", ""), "ANDY_PRICES.glm-5.output"),
        (PRICES + "cached = 1", "ANDY_PRICES.glm-5.cached"),
        ("andy_prices = 3", "ANDY_PRICES"),
        ("[andy_retention]\naudit = 3", "ANDY_RETENTION"),
        ("[andy_retention]\nusage = -1", "ANDY_RETENTION.usage"),
        ("andy_prices = '{'", "ANDY_PRICES"),
    ],
)
def test_a_bad_price_or_time_is_told_by_its_place(home, toml, place):
    write(home, toml=toml)

    assert f"{place}:" in refusal(home)


@pytest.mark.parametrize(
    "toml",
    [
        "[agents.worker]\nenabled = false\nmodel = 'small'\n[heartbeat]\ninterval_s = 60",
        "agents_worker_enabled = false\nAGENTS_WORKER_MODEL = 'small'\nheartbeat_interval_s = 60",
    ],
)
def test_what_keeps_dashboards_up_may_stand_in_tables(home, toml):
    write(home, toml=toml)
    settings = load(home, {})
    assert (settings.agents_worker_enabled, settings.agents_worker_model) == (False, "small")
    assert settings.heartbeat_interval_s == 60


def test_a_key_of_a_table_that_is_no_setting_is_named(home):
    write(home, toml="[agents.worker]\nenable = false")
    with pytest.raises(SettingError, match="agents_worker_enable"):
        load(home, {})


def test_the_times_of_day_are_checked_and_sorted(home):
    assert [f"{one:%H:%M}" for one in load(home, {"NOTIFY_SLOTS": "18:00, 07:30"}).slots] == [
        "07:30",
        "18:00",
    ]
    with pytest.raises(SettingError, match="NOTIFY_SLOTS"):
        load(home, {"NOTIFY_SLOTS": "noon"})


@pytest.mark.parametrize(
    ("enabled", "use_llm", "fallback", "warns"),
    [
        (True, True, True, False),
        (True, True, False, False),
        (True, False, True, False),
        (True, False, False, True),
        (False, False, False, False),
    ],
)
def test_a_worker_that_may_do_nothing_is_warned_of(home, enabled, use_llm, fallback, warns):
    settings = load(
        home,
        {
            "AGENTS_WORKER_ENABLED": str(enabled),
            "AGENTS_WORKER_USE_LLM": str(use_llm),
            "AGENTS_WORKER_FALLBACK_TO_RULES": str(fallback),
        },
    )
    assert bool(settings.warnings()) is warns


def test_settings_that_the_next_start_would_read_differently_are_named(home):
    (home / ".env").write_text("TZ=Asia/Seoul\n")
    running = load(home, {}, andy_port=8701)
    assert changed_since(running, home, {}) == {}

    (home / ".env").write_text("TZ=Europe/Berlin\nANDY_PORT=9000\n")
    assert changed_since(running, home, {}) == {"tz": ".env"}, "the command line still wins"

    (home / ".env").write_text("TZ=nowhere\n")
    assert changed_since(running, home, {}) == {}, "the doctor says what is wrong with it"
