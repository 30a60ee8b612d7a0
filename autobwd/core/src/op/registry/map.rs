//! The map of operators: the linked operators, or a custom set.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use rustc_hash::{FxHashMap, FxHashSet};

use super::OpInfo;
use crate::{
    Error, ErrorKind, GradKind, Result,
    error::did_you_mean,
    op::{PeepholeEntry, PeepholeFn},
};

/// Operators by type.
///
/// ```
/// use autobwd::OpInfoMap;
/// let none = OpInfoMap::default();
/// let e = none.get("relu").err().unwrap();
/// assert!(e.to_string().contains("no operators are linked into this binary"));
/// ```
#[derive(Clone, Default)]
pub struct OpInfoMap {
    entries: FxHashMap<&'static str, Entry>,
    peepholes: FxHashMap<(&'static str, &'static str), PeepholeFn>,
    /// Operators of linked crates that the build leaves out.
    left_out: FxHashSet<&'static str>,
}

/// An operator of the map.
struct Entry {
    info: &'static OpInfo,
    /// Whether it was looked up.
    used: AtomicBool,
}
impl Clone for Entry {
    fn clone(&self) -> Entry {
        Entry { info: self.info, used: AtomicBool::new(self.used.load(Ordering::Relaxed)) }
    }
}

/// The variable of a build that names the operators to link.
const OPERATORS: &str = "AUTOBWD_OPERATORS";

/// The name of an operator that the build leaves out: the variable `AUTOBWD_OPERATORS` does not name it.
#[derive(Debug)]
pub struct LeftOut(pub &'static str);
inventory::collect!(LeftOut);

impl OpInfoMap {
    /// The operators of all crates linked into this binary.
    ///
    /// # Errors
    /// Operators registered twice, and attributes with impossible bounds or defaults: all of them, with crate and line.
    pub fn linked() -> Result<&'static OpInfoMap> {
        static LINKED: OnceLock<Result<OpInfoMap>> = OnceLock::new();
        let linked = LINKED.get_or_init(|| {
            // The order of collection is unspecified; messages must not depend on it.
            let mut all: Vec<_> = inventory::iter::<OpInfo>.into_iter().collect();
            all.sort_by_key(|info| (info.schema.name, info.place()));
            let mut map = OpInfoMap::from_infos(all.iter().copied())?;
            map.left_out = inventory::iter::<LeftOut>.into_iter().map(|LeftOut(name)| *name).collect();
            map.gradients_are_linked()?;
            Ok(map)
        });
        linked.as_ref().map_err(Clone::clone)
    }

    /// Checks that gradient operators are linked. They are registered together with their forward operators, so a
    /// missing one was lost in the build.
    fn gradients_are_linked(&self) -> Result<()> {
        for info in self.iter() {
            if let GradKind::Operator(gradient) = info.grad_kind
                && !self.entries.contains_key(gradient.name)
                && !self.left_out.contains(gradient.name)
            {
                let (name, place) = (gradient.name, info.place());
                let text = format!(
                    "operator `{name}`, the gradient of `{}` by {place}, is not linked",
                    info.schema.name
                );
                return Err(Error::new(ErrorKind::NoOps, text));
            }
        }
        Ok(())
    }

    /// Whether it is the map of all linked operators.
    pub(crate) fn is_linked(&self) -> bool {
        OpInfoMap::linked().is_ok_and(|linked| std::ptr::eq(linked, self))
    }

    /// A map of these operators.
    ///
    /// # Errors
    /// Operators that occur twice, and attributes with impossible bounds or defaults: all of them, with crate and line.
    pub fn from_infos(infos: impl IntoIterator<Item = &'static OpInfo>) -> Result<OpInfoMap> {
        let (mut map, mut faults) = (OpInfoMap::default(), vec![]);
        for info in infos {
            faults.extend(map.insert(info).err());
        }
        let Some(first) = faults.first() else { return Ok(map) };
        let texts: Vec<&str> = faults.iter().map(Error::message).collect();
        Err(Error::new(first.kind(), texts.join("\n")))
    }

    /// Adds an operator.
    ///
    /// # Errors
    /// Its type is in use; an attribute whose bounds exclude every value or its default; a gradient operator with
    /// another default.
    pub fn insert(&mut self, info: &'static OpInfo) -> Result<()> {
        let name = info.schema.name;
        info.check_declaration()?;
        if let GradKind::Derived(gradient) = info.grad_kind
            && !self.entries.contains_key(name)
        {
            self.insert(gradient)?;
        }
        if let Some(PeepholeEntry { then, merge }) = info.peephole {
            self.peepholes.insert((name, then), merge);
        }
        match self.entries.get(name).map(|entry| entry.info) {
            Some(first) if first.krate == info.krate && first.version != info.version => {
                let (krate, versions) = (info.krate, [first.version, info.version]);
                let text =
                    format!("operator `{name}` comes from two versions of package `{krate}`: {versions:?}");
                Err(Error::new(ErrorKind::Duplicate, text))
            }
            Some(first) => Err(Error::new(
                ErrorKind::Duplicate,
                format!(
                    "operator `{name}` is registered twice: by {} and by {}",
                    first.place(),
                    info.place()
                ),
            )),
            None => {
                self.entries.insert(name, Entry { info, used: AtomicBool::new(false) });
                Ok(())
            }
        }
    }

    /// The operator of this type.
    ///
    /// # Errors
    /// An unknown type; the message suggests similar names, or how to link operators if the map is empty.
    pub fn get(&self, ty: &str) -> Result<&'static OpInfo> {
        let entry = self.entries.get(ty).ok_or_else(|| self.unknown(ty))?;
        entry.used.store(true, Ordering::Relaxed);
        Ok(entry.info)
    }

    fn unknown(&self, ty: &str) -> Error {
        if self.left_out.contains(ty) {
            return Error::new(
                ErrorKind::UnknownOp,
                format!(
                    "operator `{ty}` was left out of this binary: {OPERATORS} did not name it in the build"
                ),
            );
        }
        if self.entries.is_empty() {
            return Error::new(
                ErrorKind::NoOps,
                format!(
                    "operator `{ty}` is unknown: no operators are linked into this binary; \
                     a crate that is only named in Cargo.toml is left out, so write `use autobwd_ops as _;`"
                ),
            );
        }
        let hint = did_you_mean(ty, self.entries.keys().copied());
        let library_is_linked = self.entries.values().any(|entry| entry.info.crate_name() == "autobwd-ops");
        let hint = match hint.is_empty() {
            _ if !library_is_linked => "; the library's operators come with `use autobwd_ops as _;`".into(),
            true => "; is its crate linked (`use that_crate as _;`)?".into(),
            false => hint,
        };
        let n = self.entries.len();
        Error::new(
            ErrorKind::UnknownOp,
            format!("operator `{ty}` is not among the {n} linked operators{hint}"),
        )
    }

    /// The operator whose gradient operator has this type.
    pub(crate) fn forward_of(&self, gradient: &str) -> Option<&'static OpInfo> {
        let forward = self.entries.get(gradient.strip_suffix("_grad")?)?.info;
        let own = match forward.grad_kind {
            GradKind::Operator(schema) => schema.name,
            GradKind::Derived(info) => info.schema.name,
            GradKind::Composed | GradKind::Rule | GradKind::None(_) | GradKind::Zero => return None,
        };
        (own == gradient).then_some(forward)
    }

    /// Pairs of operators that one operator can replace.
    pub(crate) fn peepholes(&self) -> &FxHashMap<(&'static str, &'static str), PeepholeFn> {
        &self.peepholes
    }

    /// Whether the kernel of an operator may fail on its data: it is not declared `infallible`.
    pub fn may_fail(&self, ty: &str) -> bool {
        self.entries.get(ty).is_none_or(|entry| entry.info.may_fail())
    }

    /// All operators, sorted by type.
    pub fn iter(&self) -> impl Iterator<Item = &'static OpInfo> + '_ {
        let mut all: Vec<_> = self.entries.values().map(|entry| entry.info).collect();
        all.sort_unstable_by_key(|info| info.schema.name);
        all.into_iter()
    }

    /// The operators that were looked up so far, sorted by type: programs that are built, differentiated, planned or run
    /// look up theirs.
    ///
    /// A binary that needs no others is smaller if it is built with their names, separated by commas or white space, in
    /// the environment variable `AUTOBWD_OPERATORS`.
    /// ```standalone_crate
    /// use autobwd::OpInfoMap;
    /// # use autobwd::{Float, NoGrad, Pointwise, Var, register_op};
    /// # #[register_op(grad = NoGrad, pointwise)]
    /// # pub struct Twice<V = Var> { #[input] pub x: V, #[output(like = x)] pub out: V }
    /// # impl<F: Float> Pointwise for Twice<F> { fn eval(&mut self) { self.out = self.x * 2.0; } }
    /// let ops = OpInfoMap::linked()?;
    /// ops.get("twice")?;
    /// assert!(ops.used().any(|info| info.schema().name == "twice"));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    pub fn used(&self) -> impl Iterator<Item = &'static OpInfo> + '_ {
        self.iter().filter(|info| {
            self.entries.get(info.schema.name).is_some_and(|entry| entry.used.load(Ordering::Relaxed))
        })
    }

    /// The number of operators.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no operators.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
