"""What lies in a folder, to see that a command left nothing."""


def tree(folder):
    """Every path below, with the content of files."""
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }
