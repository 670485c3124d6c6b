"""`leasekeeper completion`: the script that teaches a shell to complete commands, options and ids."""

import click

from leasekeeper.cli import INSTRUCTION

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that makes Tab complete commands, options and ids of the store.

    Once: `leasekeeper completion bash >> ~/.bashrc`, `leasekeeper completion zsh >> ~/.zshrc` (below its compinit), or
    `leasekeeper completion fish > ~/.config/fish/completions/leasekeeper.fish`. A new shell has it.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(ctx.find_root().command, {}, "leasekeeper", INSTRUCTION).source())
