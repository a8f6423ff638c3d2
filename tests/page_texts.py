"""What a page of the dashboard shows in a test: texts, tables, command lines; and its buttons."""


def texts(elements):
    return [element.value for element in elements]


def table_with(test, column):
    (found,) = (each.value for each in test.dataframe if column in each.value.columns)
    return found


def metrics_of(test):
    return {metric.label: metric.value for metric in test.metric}


def command_lines(test):
    # Not those of the sidebar, which are of the page's report.
    return [line for code in texts(test.main.code) for line in code.splitlines()]


def command(test, name, words=""):
    """The one command line of this name that the page shows; of several, with these words."""
    (line,) = {
        line
        for line in command_lines(test)
        if line.startswith(f"moeprune {name} ") and words in line
    }
    return line


def press(test, label="Queue"):
    next(button for button in test.button if button.label == label).click().run()
    assert not test.exception
