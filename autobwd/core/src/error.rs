use std::{cell::Cell, error, fmt, ops::Range, panic::Location, sync::Arc};

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
    op: Option<OpContext>,
    /// What another library said.
    source: Option<Arc<dyn error::Error + Send + Sync>>,
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
            source: None,
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

    /// With the error of another library that it came from.
    #[must_use]
    pub fn caused_by(mut self, source: impl error::Error + Send + Sync + 'static) -> Error {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Says which operator the error is about; the innermost one stays.
    #[doc(hidden)]
    pub fn at_op(mut self, op: impl FnOnce() -> OpContext) -> Error {
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

    /// The operator that the error is about.
    pub fn op(&self) -> Option<&OpContext> {
        self.0.op.as_ref()
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
impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        let source: &(dyn error::Error + 'static) = &**self.0.source.as_ref()?;
        Some(source)
    }
}

/// The operator that an error is about.
///
/// It prints as one phrase, with the operator's variables:
/// `` operator `mul` (block 0, operator 3, added at model.rs:12; X = `h`, Y = `w`) ``.
///
/// ```
/// use autobwd::{Builder, DType, ErrorKind};
/// use autobwd_ops::Math;
///
/// let net = Builder::new();
/// let (x, w) = (net.input("x", DType::F32, &[-1, 3]), net.input("w", DType::F32, &[4, 5]));
/// x.matmul(&w);
/// let e = net.program().unwrap_err();
/// assert_eq!(e.kind(), ErrorKind::Shape);
/// let op = e.op().expect("an operator is wrong");
/// assert_eq!((op.ty(), op.place()), ("matmul_v2", Some((0, 0))));
/// assert!(op.source_line().is_some_and(|line| line.contains(".rs:")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpContext {
    text: String,
    /// Where the type is in the text.
    ty: Range<usize>,
    /// Where the source line is.
    source_line: Option<Range<usize>>,
    /// Block, and index within it.
    place: Option<(usize, usize)>,
}

impl OpContext {
    /// `` kind `ty` ``, to be continued.
    #[doc(hidden)]
    pub fn new(kind: &str, ty: &str) -> OpContext {
        // No `format!`: preparing a session describes every operator, for errors that may never come.
        let mut text = String::with_capacity(160);
        text.extend([kind, " `", ty, "`"]);
        let end = text.len() - 1;
        OpContext { text, ty: end - ty.len()..end, source_line: None, place: None }
    }

    /// `` kind `ty` (called at model.rs:12; slots) ``
    #[doc(hidden)]
    pub fn called(kind: &str, ty: &str, call: &str, site: &Location<'_>, slots: &[String]) -> OpContext {
        let mut text = OpContext::new(kind, ty);
        text.push([" (", call, " at "]);
        text.push_source_line([site.file(), ":", &site.line().to_string()]);
        let slots = slots.join(", ");
        text.push([if slots.is_empty() { "" } else { "; " }, &slots, ")"]);
        text
    }

    /// Says where it is in a program.
    #[doc(hidden)]
    #[must_use]
    pub fn at(self, block: usize, index: usize) -> OpContext {
        OpContext { place: Some((block, index)), ..self }
    }

    /// Appends text.
    #[doc(hidden)]
    pub fn push<'a>(&mut self, parts: impl IntoIterator<Item = &'a str>) {
        self.text.extend(parts);
    }

    /// Appends the source line.
    #[doc(hidden)]
    pub fn push_source_line<'a>(&mut self, parts: impl IntoIterator<Item = &'a str>) {
        let start = self.text.len();
        self.push(parts);
        self.source_line = Some(start..self.text.len());
    }

    /// Its type, `mul` say; of a custom function or a recurrent operator, its name.
    pub fn ty(&self) -> &str {
        &self.text[self.ty.clone()]
    }

    /// The index of its block and, within that, its own; none of an operator that is in no program.
    pub fn place(&self) -> Option<(usize, usize)> {
        self.place
    }

    /// The source line that added it, `model.rs:12` say, where it is known.
    pub fn source_line(&self) -> Option<&str> {
        self.source_line.clone().map(|range| &self.text[range])
    }
}

impl fmt::Display for OpContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

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
