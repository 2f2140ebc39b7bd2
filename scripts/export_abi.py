"""Write the contracts' ABIs where the Python package and the web page read them."""

import click

from scripts._abi import CONTRACTS, FOLDER, FRONTEND, INTERFACES, files_of
from scripts._compiled import compiled_contracts
from scripts._errors import Failure


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; fail when a file is not what it should be.")
def cli(check: bool) -> None:
    """Write the contracts' ABIs."""
    contracts = compiled_contracts()
    names = [*CONTRACTS, *(name for name in INTERFACES if name in contracts)]
    files = files_of({name: contracts[name].abi for name in names}, with_typescript=FRONTEND.is_dir())
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text("utf-8") != text]
    if check and stale:
        raise Failure(f"Stale: {', '.join(sorted(path.name for path in stale))}. Run `ape run export_abi`.")
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
    click.echo(f"{len(stale)} of {len(files)} files {'are stale' if check else 'written'} ({FOLDER.name}/).")
