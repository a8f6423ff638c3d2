"""Tables as CSV that is safe to open in a spreadsheet."""

import pandas as pd

# Prefixes that a spreadsheet runs as a formula; some accept the signs in
# full width as well.
_FORMULA = ("=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def csv_text(table: pd.DataFrame) -> str:
    """A table as CSV; text that a spreadsheet would run as a formula begins with an apostrophe."""
    safe = table.rename(columns=_not_a_formula)
    for name in safe.columns[[not pd.api.types.is_numeric_dtype(kind) for kind in safe.dtypes]]:
        safe = safe.assign(**{name: safe[name].map(_not_a_formula)})
    text: str = safe.to_csv(index=False)
    return text


def _not_a_formula(value: object) -> object:
    if not isinstance(value, str):
        return value
    # A lone carriage return is not quoted by pandas, and would begin a row.
    text = value.replace("\r", " ")
    return f"'{text}" if text.startswith(_FORMULA) else text
