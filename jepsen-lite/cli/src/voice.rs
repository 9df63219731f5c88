//! Where lines for people go.

/// To whom a command talks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice {
    /// To a person.
    Person,
    /// To a program, which wants results on the standard output and nothing else: lines go to standard error.
    Program,
}

impl Voice {
    /// Of a command with or without `--json`.
    pub(crate) fn of(json: bool) -> Self {
        if json { Self::Program } else { Self::Person }
    }

    /// Says a line, or several.
    pub(crate) fn say(self, line: impl AsRef<str>) {
        match self {
            Self::Person => println!("{}", line.as_ref()),
            Self::Program => eprintln!("{}", line.as_ref()),
        }
    }
}
