use std::{cell::Cell, error, fmt, ops::Range, panic::Location, sync::Arc};

/// The result type of every fallible function of autobwd.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, for programs that handle some cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Shapes are incompatible.
    Shape,
    /// An operator does not accept a dtype.
    DType,
    /// An attribute is missing, of the wrong type or out of bounds.
    Attr,
    /// A slot is unknown, or has too few or too many variables.
    Slot,
    /// An operator type that is not registered.
    UnknownOp,
    /// A variable that does not exist.
    UnknownVar,
    /// Two operators are registered under one name.
    Duplicate,
    /// The binary links no operators at all.
    NoOps,
    /// An invalid program; the message lists every fault.
    Program,
    /// A requested gradient does not exist.
    NoGradient,
    /// Fed data does not match the program.
    Feed,
    /// A requested value does not exist.
    Fetch,
    /// A variable has no value yet.
    NoValue,
    /// An operator rejects a value of its data (a label out of range, say).
    Data,
    /// A memory allocation failed.
    OutOfMemory,
    /// A loop did not end within its limit of steps.
    Endless,
    /// A NaN or an infinity, in a run that checks for them.
    NotFinite,
    /// A file system error.
    Io,
    /// A file is not in the expected format.
    Format,
    /// A device or a file format has no form of an operator; the message names operator and reason.
    Unsupported,
    /// A checkpoint of another program, or the state of a loader of other data.
    Checkpoint,
    /// A memory budget that cannot be met.
    Budget,
    /// Another rank of the run has ended, does not answer, or runs another program.
    Rank,
    /// A device, its compiler or the plugin that drives it reports an error.
    Device,
    /// Code that a user or the author of an operator supplied panicked.
    Panic,
    /// An operator contradicts its own declaration, which its author has to mend.
    Operator,
    /// A check failed.
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
    /// The error of another library that caused it.
    source: Option<Arc<dyn error::Error + Send + Sync>>,
    /// Its number among the errors of this thread with which an expression failed first; 0 if no expression did.
    failure: u64,
    /// The call that failed, if `op` does not say it.
    call: Option<&'static Location<'static>>,
    /// The enclosing blocks, innermost first.
    within: Vec<String>,
}

impl Error {
    /// An error with this message.
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

    /// An error about data that an operator meets while it runs.
    pub fn data(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Data, message)
    }

    /// An error about an attribute.
    pub fn attr(name: &str, message: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Attr, format!("attribute `{name}`: {message}"))
    }

    pub(crate) fn internal(message: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Internal, format!("autobwd bug: {message}"))
    }

    /// Records the error of another library that caused this one.
    #[must_use]
    pub fn caused_by(mut self, source: impl error::Error + Send + Sync + 'static) -> Error {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Records the operator that the error is about; the innermost one stays.
    pub(crate) fn at_op(mut self, op: impl FnOnce() -> OpContext) -> Error {
        if self.0.op.is_none() {
            self.0.op = Some(op());
        }
        self
    }

    /// The error of an expression that failed in this call. It names the line of the call unless it already has a
    /// location. An expression that fails because of another one keeps the other's error.
    pub(crate) fn of_failure(mut self, call: &'static Location<'static>) -> Error {
        if self.0.failure == 0 {
            self = self.at_call(call);
            self.0.failure = FAILURES.get() + 1;
            FAILURES.set(self.0.failure);
        }
        self
    }

    /// How many expressions have failed so far, without those that failed because of another.
    pub(crate) fn failures() -> u64 {
        FAILURES.get()
    }

    /// Whether this is the error of one of the first `failures` expressions that failed.
    pub(crate) fn is_among(&self, failures: u64) -> bool {
        (1..=failures).contains(&self.0.failure)
    }

    /// Records the line of the call that failed, unless the error says its place already.
    #[must_use]
    pub fn at_call(mut self, call: &'static Location<'static>) -> Error {
        if self.0.op.is_none() && self.0.within.is_empty() {
            self.0.call.get_or_insert(call);
        }
        self
    }

    /// Records an enclosing block, or the operator that runs it. Calls go from the innermost block outwards.
    #[must_use]
    pub fn within(mut self, place: impl FnOnce() -> String) -> Error {
        self.0.within.push(place());
        self
    }

    /// The kind of error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message without the operator it is about and without the enclosing blocks.
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
        // `main` prints errors with `Debug`.
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
/// It prints as one phrase, with the operator's variables: `` operator `mul` (block 0, operator 3, added at
/// model.rs:12; X = `h`, Y = `w`) ``.
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
    /// The range of the type in `text`.
    ty: Range<usize>,
    /// The range of the source line in `text`.
    source_line: Option<Range<usize>>,
    /// The block, and the index within it.
    place: Option<(usize, usize)>,
}

impl OpContext {
    /// `` kind `ty` ``, to which the caller appends.
    pub(crate) fn new(kind: &str, ty: &str) -> OpContext {
        // No `format!`: preparing a session describes every operator, for errors that are rare.
        let mut text = String::with_capacity(160);
        text.extend([kind, " `", ty, "`"]);
        let end = text.len() - 1;
        OpContext { text, ty: end - ty.len()..end, source_line: None, place: None }
    }

    /// `` kind `ty` (called at model.rs:12; slots) ``
    pub(crate) fn called(
        kind: &str,
        ty: &str,
        call: &str,
        site: &Location<'_>,
        slots: &[String],
    ) -> OpContext {
        let mut text = OpContext::new(kind, ty);
        text.push([" (", call, " at "]);
        text.push_source_line([site.file(), ":", &site.line().to_string()]);
        let slots = slots.join(", ");
        text.push([if slots.is_empty() { "" } else { "; " }, &slots, ")"]);
        text
    }

    /// Sets its position in a program.
    #[must_use]
    pub(crate) fn at(self, block: usize, index: usize) -> OpContext {
        OpContext { place: Some((block, index)), ..self }
    }

    /// Appends text.
    pub(crate) fn push<'a>(&mut self, parts: impl IntoIterator<Item = &'a str>) {
        self.text.extend(parts);
    }

    /// Appends the source line.
    pub(crate) fn push_source_line<'a>(&mut self, parts: impl IntoIterator<Item = &'a str>) {
        let start = self.text.len();
        self.push(parts);
        self.source_line = Some(start..self.text.len());
    }

    /// Its type, `mul` say; the name of a custom function or a recurrent operator.
    pub fn ty(&self) -> &str {
        &self.text[self.ty.clone()]
    }

    /// The index of its block and its own index there; `None` for an operator outside a program.
    pub fn place(&self) -> Option<(usize, usize)> {
        self.place
    }

    /// The source line that added it, `model.rs:12` say, if known.
    pub fn source_line(&self) -> Option<&str> {
        self.source_line.clone().map(|range| &self.text[range])
    }
}

impl fmt::Display for OpContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The most that distances may cost for one message, in cells of their tables: a program without values lacks all names.
const SUGGESTION_COST: usize = 1 << 18;

/// The end of a message: the known names nearest to a misspelt one. Empty if none is near. Of very many names, the first
/// ones are compared.
pub fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let limit = 2.max(wrong.len() / 4);
    let mut cost = 0_usize;
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        // Each letter more or less is an edit.
        .filter(|k| k.len().abs_diff(wrong.len()) <= limit.saturating_mul(4))
        .take_while(|k| {
            cost = cost.saturating_add(k.len().saturating_mul(wrong.len()));
            cost <= SUGGESTION_COST
        })
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
