//! The text of a function under construction.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    fmt::{self, Write as _},
    rc::Rc,
};

use autobwd::{__private::internals::*, Error, ErrorKind};

use super::{Hlo, HloType, Id};

/// A value without a name.
pub(super) const UNSET: &str = "%unset";

/// A function that is being written, shared by its values.
#[derive(Clone)]
pub(crate) struct HloFunction(Rc<RefCell<FunctionText>>);

struct FunctionText {
    /// The lines of the function, and of the regions around the one that is being written, outermost first.
    bodies: Vec<String>,
    next: usize,
    /// Names of values; others have numbers.
    names: HashMap<usize, String>,
    used: HashSet<String>,
    failure: Option<Error>,
    replicas: usize,
}

impl HloFunction {
    /// An empty function of a program that runs on that many replicas.
    pub(crate) fn new(replicas: usize) -> HloFunction {
        HloFunction(Rc::new(RefCell::new(FunctionText {
            bodies: vec![String::new()],
            next: 0,
            names: HashMap::new(),
            used: HashSet::new(),
            failure: None,
            replicas,
        })))
    }

    pub(super) fn replicas(&self) -> usize {
        self.0.borrow().replicas
    }

    /// A value that an operation or a caller defines: an argument.
    pub(crate) fn argument(&self, ty: HloType) -> Hlo {
        let mut text = self.0.borrow_mut();
        text.next += 1;
        Hlo { id: Id::One(text.next - 1), ty, known: None, narrow: None, f: self.clone() }
    }

    /// Zeros.
    pub(crate) fn zeros(&self, ty: &HloType) -> Hlo {
        let of = Hlo { id: Id::Unset, ty: ty.clone(), known: None, narrow: None, f: self.clone() };
        of.full_like(0.0)
    }

    /// Appends an operation with that many results, and returns their number.
    pub(super) fn line(&self, results: usize, operation: impl fmt::Display) -> usize {
        let id = {
            let mut text = self.0.borrow_mut();
            text.next += 1;
            text.next - 1
        };
        let operation = operation.to_string();
        if operation.contains(UNSET) {
            self.fail(Error::internal("a value is read that no operator sets"));
        }
        match results {
            1 => self.push(&format!("%{id} = {operation}")),
            n => self.push(&format!("%{id}:{n} = {operation}")),
        }
        id
    }

    /// Appends a line.
    fn push(&self, line: &str) {
        let mut text = self.0.borrow_mut();
        let indent = 2 * text.bodies.len() + 2;
        if let Some(body) = text.bodies.last_mut() {
            // Writing to a string does not fail.
            let _ = writeln!(body, "{:indent$}{line}", "");
        }
    }

    /// Appends a comment.
    pub(crate) fn comment(&self, comment: &str) {
        let printable: String = comment.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.push(&format!("// {}", printable.replace('%', "%%")));
    }

    /// Ends the innermost region with these results.
    pub(super) fn end_region(&self, results: &[Hlo]) -> String {
        let types: Vec<String> = results.iter().map(|value| value.ty.to_string()).collect();
        let values: Vec<String> = results.iter().map(Hlo::to_string).collect();
        match results {
            [] => self.push("stablehlo.return"),
            _ => self.push(&format!("stablehlo.return {} : {}", values.join(", "), types.join(", "))),
        }
        self.0.borrow_mut().bodies.pop().unwrap_or_default()
    }

    /// Begins a region: lines are appended to it until [`end_region`](HloFunction::end_region).
    pub(super) fn begin_region(&self) {
        self.0.borrow_mut().bodies.push(String::new());
    }

    /// The indentation of the lines around the innermost region.
    pub(super) fn indentation(&self) -> String {
        " ".repeat(2 * self.0.borrow().bodies.len() + 2)
    }

    /// Names a value after a variable, unless it has a name.
    pub(crate) fn name(&self, value: &Hlo, name: &str) {
        let Id::One(id) = value.id else { return };
        let mut text = self.0.borrow_mut();
        if text.names.contains_key(&id) {
            return;
        }
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '.' { c } else { '.' };
        let mut base: String = name.chars().map(plain).collect();
        if !base.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            base.insert(0, '_');
        }
        let mut name = base.clone();
        let mut number = 1;
        while !text.used.insert(name.clone()) {
            name = format!("{base}_{number}");
            number += 1;
        }
        text.names.insert(id, name);
    }

    /// Remembers the first failure.
    pub(crate) fn fail(&self, error: Error) {
        self.0.borrow_mut().failure.get_or_insert(error);
    }

    /// Remembers that an operator has no form.
    pub(crate) fn refuse(&self, why: impl fmt::Display) {
        self.fail(Error::new(ErrorKind::Unsupported, format!("it has no form in StableHLO: {why}")));
    }

    /// Takes the first failure since the last call.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.0.borrow_mut().failure.take()
    }

    /// Writes text in which values have numbers with their names.
    pub(crate) fn named(&self, text: &str) -> String {
        let names = &self.0.borrow().names;
        let (mut named, mut rest) = (String::with_capacity(text.len()), text);
        while let Some(at) = rest.find('%') {
            named.push_str(&rest[..=at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('%') {
                rest = after;
                continue;
            }
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            match rest[..digits].parse().ok().and_then(|id: usize| names.get(&id)) {
                Some(name) => named.push_str(name),
                None => named.push_str(&rest[..digits]),
            }
            rest = &rest[digits..];
        }
        named.push_str(rest);
        named
    }

    /// The lines of the function.
    pub(crate) fn body(&self) -> String {
        self.named(self.0.borrow().bodies.first().map_or("", String::as_str))
    }
}
