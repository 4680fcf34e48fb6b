"""`python -m bench.cluster run --spec two_hosts_200mbit -- cfp plan gpt ...`"""

from __future__ import annotations

import sys

import click

from bench.cluster.run import run
from bench.cluster.spec import SPECS, SpecError, read_spec


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Test clusters on this machine: needs root and iproute2."""


@main.command("run", context_settings={"ignore_unknown_options": True})
@click.option("--spec", required=True, help="A TOML file, or a name that `list` shows.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run_command(spec: str, command: tuple[str, ...]) -> None:
    """Run a command as the processes of a cluster, which is made for it and then removed.

    \b
        python -m bench.cluster run --spec two_hosts_200mbit -- \\
            cfp plan gpt --size small --mesh 4 --platform cpu
    """
    sys.exit(run(read_spec(spec), command))


@main.command("list")
def list_command() -> None:
    """Show the specs there are."""
    for path in sorted(SPECS.glob("*.toml")):
        click.echo(f"{path.name}: {read_spec(path.name).description}")


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except SpecError as error:
        sys.exit(f"bench.cluster: {error}")
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
