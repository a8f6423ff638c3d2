"""Libraries that would draw bars and warn on their own: progress is shown our way."""


def quiet_transformers() -> None:
    """No bars, errors only."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
