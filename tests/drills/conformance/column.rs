//! The columns: what each behaviour means, the same for every dialect.

/// What every dialect is asked to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    Version,
    Prompt,
    Stream,
    Tools,
    Allow,
    Deny,
    Ask,
    Cancel,
    Busy,
    Crash,
    Resume,
    Goodbye,
    Eof,
    Garbage,
    HugeLine,
    Usage,
}

impl Column {
    pub(crate) const ALL: [Self; 16] = [
        Self::Version,
        Self::Prompt,
        Self::Stream,
        Self::Tools,
        Self::Allow,
        Self::Deny,
        Self::Ask,
        Self::Cancel,
        Self::Busy,
        Self::Crash,
        Self::Resume,
        Self::Goodbye,
        Self::Eof,
        Self::Garbage,
        Self::HugeLine,
        Self::Usage,
    ];

    /// Its head in the table.
    pub(crate) const fn head(self) -> &'static str {
        match self {
            Self::Version => "version gate",
            Self::Prompt => "prompt",
            Self::Stream => "stream",
            Self::Tools => "tool events",
            Self::Allow => "allow",
            Self::Deny => "deny with reason",
            Self::Ask => "ask and wait",
            Self::Cancel => "cancel",
            Self::Busy => "second prompt while busy",
            Self::Crash => "crash in mid-turn",
            Self::Resume => "resume",
            Self::Goodbye => "goodbye",
            Self::Eof => "EOF",
            Self::Garbage => "garbage",
            Self::HugeLine => "huge line",
            Self::Usage => "usage",
        }
    }

    /// What a `yes` says.
    pub(crate) const fn yes_meaning(self) -> &'static str {
        match self {
            Self::Version => {
                "An agent that claims another version gets no prompt: its task fails without an attempt, both versions are named, and the slot parks."
            }
            Self::Prompt => {
                "A prompt comes to the agent byte for byte, quotes, backslashes and other scripts in it, once, and its turn ends as completed."
            }
            Self::Stream => "Pieces of the answer are told while the turn still runs.",
            Self::Tools => {
                "A tool call is told with its name and input when it begins, and with its output, under the same id, when it ends."
            }
            Self::Allow => {
                "The agent asks before a call, the policy allows it, that is on record, and the call runs."
            }
            Self::Deny => {
                "The policy denies a call: it does not run, the turn goes on, and the reason comes to the agent."
            }
            Self::Ask => {
                "What the policy wants a person to decide is shown and waits, with nothing run meanwhile; when a person allows it, it runs."
            }
            Self::Cancel => {
                "A running turn is ended by the protocol's own words, and the same child works the next prompt."
            }
            Self::Busy => {
                "A second prompt while a turn runs waits: the agent gets it when the first turn has ended, as a turn of its own."
            }
            Self::Crash => {
                "A child that is killed in the middle of a turn ends that turn as lost; what it had said is kept, the next prompt is worked by a new child, and a neighbour's turn goes on in its own."
            }
            Self::Resume => {
                "After such a crash the new child goes on with the agent's own session and remembers what was said in it."
            }
            Self::Goodbye => {
                "When it is to go, the agent is told so in the protocol's own words, and ends by itself, with exit code 0."
            }
            Self::Eof => {
                "An agent that hears no goodbye ends by itself, with exit code 0, when its stdin ends."
            }
            Self::Garbage => {
                "Lines that are no messages are on record and passed over; more than a hundred of them end the child, and the next prompt is worked by a new one."
            }
            Self::HugeLine => {
                "A line of 64 MiB is refused at its limit, with less than 48 MiB more of the supervisor's memory; the child is ended, and the next prompt is worked by a new one."
            }
            Self::Usage => {
                "The tokens of a turn, as the agent counts them, are on record with its end."
            }
        }
    }
}

/// What came of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellOutcome {
    /// It is so.
    Yes,
    /// It is so, in a way that the table tells apart.
    As(&'static str),
    /// The protocol has none, and that was seen too: why.
    None(&'static str),
}
