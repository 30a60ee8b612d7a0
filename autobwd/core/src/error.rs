use std::{cell::Cell, fmt, panic::Location};

/// What every fallible function of autobwd returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, for programs that want to tell cases apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Shapes do not fit each other.
    Shape,
    /// A dtype does not fit.
    DType,
    /// An attribute is missing, of the wrong type or out of bounds.
    Attr,
    /// A slot is unknown, empty or overfull.
    Slot,
    /// An operator type that nobody registered.
    UnknownOp,
    /// A variable that does not exist.
    UnknownVar,
    /// Operators registered twice.
    Duplicate,
    /// The binary links no operators at all.
    NoOps,
    /// A program that is not valid; the message lists every fault.
    Program,
    /// A gradient that was asked for does not exist.
    NoGradient,
    /// What was fed does not fit the program.
    Feed,
    /// A value that was asked for does not exist.
    Fetch,
    /// A variable that has no value yet.
    NoValue,
    /// A value in the data that an operator cannot take (a label out of range, say).
    Data,
    /// Memory that the system does not have.
    OutOfMemory,
    /// A loop that has not ended within its limit of steps.
    Endless,
    /// A NaN or an infinity, in a run that looks for them.
    NotFinite,
    /// The file system said no.
    Io,
    /// A file that is not what it should be.
    Format,
    /// A memory budget that cannot be met.
    Budget,
    /// A check that does not hold.
    Check,
    /// A broken invariant of autobwd itself.
    Internal,
}

thread_local! {
    static FAILURES: Cell<u64> = const { Cell::new(0) };
}

/// An error: its kind, a message, and the operator it is about, if any.
///
/// ```
/// use autobwd::{Error, ErrorKind};
/// let e = Error::new(ErrorKind::Shape, "`Y`: shape [3] does not match [4] of `X`");
/// assert_eq!(e.kind(), ErrorKind::Shape);
/// assert_eq!(e.to_string(), "`Y`: shape [3] does not match [4] of `X`");
/// ```
#[derive(Clone)]
pub struct Error(Box<Repr>);

#[derive(Clone)]
struct Repr {
    kind: ErrorKind,
    message: String,
    /// `` operator `mul` (block 0, operator 3, added at model.rs:12; X = `h`, Y = `w`) ``
    op: Option<String>,
    /// When an expression has failed with it for the first time, counted by this thread; 0 if none has.
    failure: u64,
    /// The call that failed, where no operator says it.
    call: Option<&'static Location<'static>>,
    /// Blocks around it, the innermost first.
    within: Vec<String>,
}

impl Error {
    /// An error with that message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Repr {
            kind,
            message: message.into(),
            op: None,
            failure: 0,
            call: None,
            within: vec![],
        }))
    }

    /// An error about data that an operator met while running.
    pub fn data(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Data, message)
    }

    /// An error about an attribute.
    pub fn attr(name: &str, message: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Attr, format!("attribute `{name}`: {message}"))
    }

    #[doc(hidden)]
    pub fn internal(message: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Internal, format!("autobwd bug: {message}"))
    }

    /// Says which operator the error is about; the innermost one stays.
    #[doc(hidden)]
    pub fn at_op(mut self, op: impl FnOnce() -> String) -> Error {
        if self.0.op.is_none() {
            self.0.op = Some(op());
        }
        self
    }

    /// The error of an expression that has failed in this call. It says the line of the call unless it has a place
    /// already; an expression that fails because another one has done so keeps that one's error.
    pub(crate) fn of_failure(mut self, call: &'static Location<'static>) -> Error {
        if self.0.failure == 0 {
            if self.0.op.is_none() && self.0.within.is_empty() {
                self.0.call = Some(call);
            }
            self.0.failure = FAILURES.get() + 1;
            FAILURES.set(self.0.failure);
        }
        self
    }

    /// How many expressions have failed so far, not counting those that were built from others.
    pub(crate) fn failures() -> u64 {
        FAILURES.get()
    }

    /// Whether it is the error of an expression that was among the first `failures` to fail.
    pub(crate) fn is_among(&self, failures: u64) -> bool {
        (1..=failures).contains(&self.0.failure)
    }

    /// Says which block, or operator that has one, it happened in; the innermost one comes first.
    #[must_use]
    pub fn within(mut self, place: impl FnOnce() -> String) -> Error {
        self.0.within.push(place());
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message without the operator it is about, and without the blocks around that.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The operator that the error is about: type, place in the program, source line, variables.
    pub fn op(&self) -> Option<&str> {
        self.0.op.as_deref()
    }
}
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.op {
            Some(op) => write!(f, "{op}: {}", self.0.message)?,
            None => f.write_str(&self.0.message)?,
        }
        if let Some(call) = self.0.call {
            write!(f, "\n  at {}:{}", call.file(), call.line())?;
        }
        self.0.within.iter().try_for_each(|place| write!(f, "\n  within {place}"))
    }
}
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What `main` prints.
        fmt::Display::fmt(self, f)
    }
}
impl std::error::Error for Error {}

/// The known names nearest to a misspelt one, as the end of a message; empty when none is near.
pub fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let limit = 2.max(wrong.len() / 4);
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(wrong, k), k))
        .filter(|(d, _)| *d <= limit)
        .collect();
    near.sort_unstable();
    near.dedup();
    match near.as_slice() {
        [] => String::new(),
        near => {
            let names: Vec<_> = near.iter().take(3).map(|(_, k)| format!("`{k}`")).collect();
            format!("; did you mean {}?", names.join(" or "))
        }
    }
}
