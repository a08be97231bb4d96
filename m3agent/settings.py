"""What the person chose: options of the command line, then the environment, then the config file, then defaults.

The environment is read here and nowhere else in the agent.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from m3agent.errors import M3Error
from m3agent.forge.access import Forge, configured_forges
from m3agent.ui.graphics import Graphics, detect

if TYPE_CHECKING:
    from m3_tools.mcp.server import McpServer
    from m3_tools.secret import Secrets
    from m3agent.permissions.rules import Rule

NUMBER_KEYS = (
    "max_steps",
    "time_limit_s",
    "temperature",
    "max_tokens",
    "repository_tokens",
    "disk_cache_gb",
    "expert_bits",
)
ImageRule = Literal["long_side", "area"]
Device = Literal["auto", "cpu", "cuda"]
ThemeName = Literal["dark", "light", "contrast", "none"]
Notify = Literal["bell", "osc", "off"]
SWITCH_KEYS = ("screen_reader", "cuda_graphs")
FILE_KEYS = (
    "model", "device", "experts", "api_key", "keys", "theme", "notify", "image_rule", "thumbnails",
    *SWITCH_KEYS, *NUMBER_KEYS,
)  # fmt: skip
TABLE_KEYS = ("mcp",)
"""Tables in the config file, for instance [mcp.github]."""
LIST_KEYS = ("allow", "ask", "deny", "environment", "not_secret")
"""Lists in the config file, for instance allow = ["shell: git status", "edit: docs/**"]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Every choice of one run, checked when built."""

    model: str = "nano"
    """Which model answers: `nano`, a checkpoint folder, a hub id, a URL, or `scripted:FILE`."""
    device: Device = "auto"
    """Where a local model computes: `cpu`, `cuda`, or `auto` for a GPU that it fits on and else the CPU."""
    cuda_graphs: bool = True
    """Whether a GPU replays captured decode steps; False starts every operation of every step anew."""
    experts: str = "auto"
    """Where a model's routed experts are that a GPU computes: `auto` by room, or `cpu` for a CPU that computes them."""
    expert_bits: int = 16
    """4 rounds routed experts to MXFP4 when they are loaded, which changes answers a little; 16 leaves them."""
    gpus: int = 0
    """Over how many GPUs a checkpoint folder is spread; 0 leaves it to `device`."""
    ranks_on_cpu: bool = False
    """For trials: instead of GPUs, as many processes on the CPU (M3_RANKS_ON_CPU=1)."""
    torchrun_rank: int | None = None
    """Which rank this process is where torchrun started it."""
    state_dir: Path
    """Where sessions and spilled output live."""
    api_key: str = dataclasses.field(default="", repr=False)
    """Sent as a bearer token to a model behind a URL; never stored or shown."""
    server_key: str = dataclasses.field(default="", repr=False)
    """What `m3 serve` asks of its clients (M3_API_KEY); never stored or shown."""
    forges: tuple[Forge, ...] = ()
    """The forges that hold issues, with the tokens that may go there."""
    max_steps: int = 40
    """Model turns in one task."""
    time_limit_s: float = 1800.0
    """Seconds in one task."""
    max_tokens: int = 16_384
    """Tokens in one reply, reasoning included."""
    repository_tokens: int = 200_000
    """Tokens of the repository that stand in the prompt from the start, in a window that has room; 0 for none."""
    cache_dir: Path | None = None
    """Where computed prompts of local models live; None keeps none."""
    disk_cache_gb: float | None = None
    """How much of them is kept for later runs, in GB; 0 for none. Not given: none of nano's, 50 of a checkpoint's."""
    temperature: float = 1.0
    """Sampling temperature; M3's vendor recommends 1.0."""
    keys: str = "emacs"
    """How drafts are edited in a chat: `emacs` or `vi`."""
    theme: ThemeName = "dark"
    """Colours on a terminal: `dark`, `light`, `contrast`, or `none` (which NO_COLOR chooses)."""
    notify: Notify = "bell"
    """How a chat calls you while its terminal has no focus: `bell`, `osc` (a notification), or `off`."""
    screen_reader: bool = False
    """Whether a chat draws nothing twice: plain lines, and a plain line to write on (--screen-reader)."""
    hyperlinks: bool = False
    """Whether the terminal is known to show links that can be clicked."""
    image_rule: ImageRule = "long_side"
    """How large a local model reads an image: `long_side` up to 2016 pixels, or `area` up to 672 x 672."""
    thumbnails: Graphics = "off"
    """How pictures are shown on the terminal. In the config file also `auto`, which it is where nothing is said."""
    sandbox: bool = True
    """Whether commands run inside the operating system's sandbox; False (--no-sandbox) gives them all your rights."""
    network: bool = False
    """Whether commands in the sandbox may use the network (--allow-network)."""
    environment: tuple[str, ...] = ()
    """Names of further variables that commands in the sandbox get; those named like a secret never."""
    allow: tuple[str, ...] = ()
    """Calls that need no approval: `TOOL: PATTERN`, a path as in .gitignore, or the first words of a command."""
    ask: tuple[str, ...] = ()
    """Calls that a person is asked for in every mode."""
    deny: tuple[str, ...] = ()
    """Calls that are refused in every mode."""
    not_secret: tuple[str, ...] = ()
    """Files that are named like a secret and are none, as patterns of a .gitignore."""
    secret_values: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    """Texts that no tool result and no session file shows: the credentials in the environment."""
    servers: tuple[McpServer, ...] = ()
    """MCP servers whose tools the model gets: the person's own, then those of a trusted repository."""
    notes: tuple[str, ...] = ()
    """What the person should hear about these settings."""
    command_environment: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """The environment that tools give to the commands they start: ours, without credentials."""

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise M3Error("no model is chosen: give --model nano, a checkpoint folder or a URL")
        if self.gpus < 0:
            raise M3Error(f"--gpus must be 1 or more, not {self.gpus}")
        for name in ("max_steps", "time_limit_s", "max_tokens"):
            if not getattr(self, name) > 0:
                raise M3Error(f"{name} must be greater than 0, not {getattr(self, name)}")
        if self.disk_cache_gb is not None and not 0 <= self.disk_cache_gb <= 1_000_000:
            raise M3Error(f"disk_cache_gb must lie between 0 and 1,000,000, not {self.disk_cache_gb}")
        if not 0 <= self.temperature <= 2:
            raise M3Error(f"temperature must lie between 0 and 2, not {self.temperature}")
        if self.keys not in ("emacs", "vi"):
            raise M3Error(f"keys must be emacs or vi, not {self.keys!r}")
        if self.device not in get_args(Device):
            raise M3Error(f"device must be auto, cpu or cuda, not {self.device!r}")
        if self.theme not in get_args(ThemeName):
            raise M3Error(f"theme must be one of {', '.join(get_args(ThemeName))}, not {self.theme!r}")
        if self.notify not in get_args(Notify):
            raise M3Error(f"notify must be one of {', '.join(get_args(Notify))}, not {self.notify!r}")
        if self.experts not in ("auto", "cpu"):
            raise M3Error(f"experts must be auto or cpu, not {self.experts!r}")
        if self.expert_bits not in (16, 4):
            raise M3Error(f"expert_bits must be 16 or 4, not {self.expert_bits}")
        if self.image_rule not in get_args(ImageRule):
            raise M3Error(f"image_rule must be long_side or area, not {self.image_rule!r}")
        if self.thumbnails not in get_args(Graphics):
            names = ", ".join(get_args(Graphics))
            raise M3Error(f"thumbnails must be auto, {names}, not {self.thumbnails!r}")
        if self.allow or self.ask or self.deny:
            _ = self.rules  # a rule that cannot be read is told at once

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The person's rules, in no order: deny goes before ask, and ask before allow."""
        from m3agent.permissions.rules import parse_rules

        return parse_rules({"allow": self.allow, "ask": self.ask, "deny": self.deny})

    @property
    def secrets(self) -> Secrets:
        """What is kept from the model and from saved sessions."""
        from m3_tools.secret import Secrets, is_secret_value

        of_servers = (value for server in self.servers for value in (*server.headers.values(), *server.env.values()))
        of_forges = (forge.token for forge in self.forges)
        own = tuple(value for value in (self.api_key, *of_forges, *of_servers) if is_secret_value(value))
        return Secrets(allowed=self.not_secret, values=(*self.secret_values, *own))

    @property
    def prefixes_dir(self) -> Path | None:
        return self.cache_dir / "prefixes" if self.cache_dir else None

    @property
    def disk_cache_bytes(self) -> int:
        if self.disk_cache_gb is None:
            return 0 if self.model == "nano" else 50 * 10**9
        return int(self.disk_cache_gb * 1e9)

    @property
    def placement(self) -> dict[str, Any]:
        """How a local model is put on this machine, as m3_runtime's loading takes it."""
        return {name: getattr(self, name) for name in ("device", "cuda_graphs", "experts", "expert_bits")}

    @property
    def sessions_dir(self) -> Path:
        return self.state_dir / "sessions"


def load_settings(*, environ: Mapping[str, str] | None = None, repo: Path | None = None, **chosen: Any) -> Settings:
    """The settings of this run. `chosen` are options of the command line; None means not given.

    What the repository `repo` brings counts if the person trusts it: its model goes before that of the person's file.
    Errors: M3Error for a config file that cannot be read, an unknown key, or a value out of range.
    """
    env = os.environ if environ is None else environ
    values: dict[str, Any] = _from_file(_config_path(env))
    values["servers"] = values.pop("mcp", ())
    values["command_environment"] = _without_credentials(env)
    if repo is not None:
        _add_trusted(values, repo, _state_dir(env))
    if model := env.get("M3_MODEL"):
        values["model"] = model
    if key := env.get("M3_API_KEY") or env.get("OPENAI_API_KEY"):
        values["api_key"] = key
    if key := env.get("M3_API_KEY"):
        values["server_key"] = key
    if env.get("NO_COLOR"):
        values["theme"] = "none"
    values["hyperlinks"] = _shows_hyperlinks(env)
    values["forges"] = configured_forges(env)
    values["state_dir"] = _state_dir(env)
    values["cache_dir"] = _cache_dir(env)
    values["secret_values"] = _secret_values(env)
    values["ranks_on_cpu"] = env.get("M3_RANKS_ON_CPU") == "1"
    values.update({name: value for name, value in chosen.items() if value is not None})
    if env.get("NO_COLOR") or values.get("thumbnails", "auto") == "auto":
        values["thumbnails"] = detect(env)
    _add_torchrun(values, env)
    return Settings(**values)


def _add_torchrun(values: dict[str, Any], env: Mapping[str, str]) -> None:
    """Under torchrun the model is spread over its ranks, whose number --gpus may repeat."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(env.get(name) for name in names):
        return
    try:
        rank, size, here = (int(env[name]) for name in names[:3])
    except ValueError:
        return
    if size != here:
        raise M3Error(
            f"torchrun started {size} ranks, {here} of them here, and m3 runs on one machine: for more of them start "
            "a server such as vLLM and give m3 its URL"
        )
    if values.get("gpus") not in (None, 0, size):
        raise M3Error(f"torchrun started {size} ranks and --gpus says {values['gpus']}: leave --gpus out")
    values["gpus"], values["torchrun_rank"] = size, rank


def _config_path(env: Mapping[str, str]) -> Path:
    if home := env.get("M3_HOME"):
        return Path(home) / "config.toml"
    import platformdirs

    return platformdirs.user_config_path("m3") / "config.toml"


def _state_dir(env: Mapping[str, str]) -> Path:
    if home := env.get("M3_HOME"):
        return Path(home).absolute()
    import platformdirs

    return platformdirs.user_state_path("m3")


def _cache_dir(env: Mapping[str, str]) -> Path:
    if home := env.get("M3_HOME"):
        return Path(home).absolute() / "cache"
    import platformdirs

    return platformdirs.user_cache_path("m3")


def _from_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise M3Error(f"{path} cannot be read: {error}. Mend or remove it.") from error
    for name, value in values.items():
        if name in LIST_KEYS:
            if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
                raise M3Error(f"{path}: {name} must be a list of texts in quotes")
            values[name] = tuple(value)
            continue
        if name == "mcp":
            values[name] = _servers(path, value)
            continue
        if name not in FILE_KEYS:
            known = ", ".join((*FILE_KEYS, *LIST_KEYS, *TABLE_KEYS))
            raise M3Error(f"{path}: there is no setting {name!r}; the settings are {known}")
        expected, what = _expected(name)
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise M3Error(f"{path}: {name} must be {what}")
    return values


def _expected(name: str) -> tuple[type | tuple[type, ...], str]:
    """The type of a setting in the file, and its name for people."""
    if name in SWITCH_KEYS:
        return bool, "true or false"
    return ((int, float), "a number") if name in NUMBER_KEYS else (str, "text in quotes")


def _servers(path: Path, tables: Any) -> tuple[McpServer, ...]:
    from m3_tools.mcp.server import parse_servers

    try:
        if not isinstance(tables, dict):
            raise ValueError("mcp must be tables, for instance [mcp.github]")
        return parse_servers(tables, by_person=True)
    except ValueError as error:
        raise M3Error(f"{path}: {error}") from error


def _add_trusted(values: dict[str, Any], repo: Path, state_dir: Path) -> None:
    """Add what the repository brings, if it is trusted; a note says why something has no effect."""
    from m3agent.repository.config import parse_config, read_brought
    from m3agent.trust import TrustStore

    try:
        brought = read_brought(repo)
        if brought is None:
            return
        if TrustStore(state_dir).state(repo, brought.digest) != "trusted":
            raise M3Error(f"{repo} brings settings that you do not trust; they have no effect (see m3 trust)")
        config = parse_config(brought.text)
    except M3Error as error:
        values["notes"] = (str(error),)
        return
    if config.model:
        values["model"] = config.model
    values["command_environment"] = {**values["command_environment"], **config.env}
    values["environment"] = (*values.get("environment", ()), *config.env)
    own = {server.name for server in values["servers"]}
    values["servers"] += tuple(server for server in config.servers if server.name not in own)


def _without_credentials(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for commands that a model chose: names that usually hold a secret are left out."""
    from m3_tools.secret import is_secret_variable

    return {name: value for name, value in env.items() if not is_secret_variable(name)}


def _shows_hyperlinks(env: Mapping[str, str]) -> bool:
    """Whether the terminal is one that is known to show them. Inside tmux and screen that cannot be told."""
    if (forced := env.get("FORCE_HYPERLINK")) is not None:
        return forced not in ("", "0")
    if env.get("TMUX") or env.get("STY") or env.get("TERM", "").startswith(("screen", "tmux", "dumb", "linux")):
        return False
    if env.get("KITTY_WINDOW_ID") or env.get("WT_SESSION"):
        return True
    if env.get("TERM_PROGRAM") in ("iTerm.app", "WezTerm", "vscode", "ghostty"):
        return True
    vte = env.get("VTE_VERSION", "")
    return vte.isdecimal() and int(vte) >= 5000


def _secret_values(env: Mapping[str, str]) -> tuple[str, ...]:
    """The values of the others, as far as they can be told from ordinary words; the longest first."""
    from m3_tools.secret import is_secret_value, is_secret_variable

    found = {value for name, value in env.items() if is_secret_variable(name) and is_secret_value(value)}
    return tuple(sorted(found, key=lambda value: (-len(value), value)))
