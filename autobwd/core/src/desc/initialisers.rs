//! Initialisers of values of the scope: two startup programs must not initialise one value in two ways.

use std::{fmt, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{OpDesc, Program, Var};
use crate::{Error, ErrorKind, Result};

/// By value of the scope: the operator without inputs that initialises it.
#[derive(Clone, Debug, Default)]
pub struct Initialisers(FxHashMap<String, Arc<OpDesc>>);

impl Initialisers {
    /// The initialisers in a startup program, and none in another one, which may well set a value that is kept.
    pub fn of(program: &Program) -> Initialisers {
        if program.is_startup() { Initialisers::of_startup(program) } else { Initialisers::default() }
    }

    /// The initialisers in a startup program: operators without inputs that write persistable variables which no operator
    /// reads.
    pub fn of_startup(program: &Program) -> Initialisers {
        let root = program.root();
        let is_kept = |v: &Var| root.vars.get(v).is_some_and(|desc| desc.persistable);
        let mut found: FxHashMap<Var, &OpDesc> = FxHashMap::default();
        for op in root.ops.iter().filter(|op| op.reads().next().is_none()) {
            found.extend(op.writes().filter(is_kept).map(|var| (var, op)));
        }
        if found.is_empty() {
            return Initialisers::default();
        }
        let read: FxHashSet<Var> = root.ops.iter().flat_map(OpDesc::reads).collect();
        let unread = found.into_iter().filter(|(var, _)| !read.contains(var));
        Initialisers(unread.map(|(var, op)| (program.name(var).into(), Arc::new(op.clone()))).collect())
    }

    /// Checks that values which were initialised before are initialised in the same way.
    ///
    /// # Errors
    /// A value with another initialiser.
    pub fn check(&self, new: &Initialisers) -> Result<()> {
        let Some((name, known, op)) = self.clash(new, |_| true) else { return Ok(()) };
        let text = format!(
            "`{name}` has been initialised by another program, {}, and would now be overwritten, {}: give the \
             optimizer or layer a name of its own, such as `.name(\"critic\")`, use another scope, or initialise only \
             what is missing (`Scope::missing_only`)",
            InitialiserText(known),
            InitialiserText(op)
        );
        Err(Error::new(ErrorKind::Program, text))
    }

    /// Checks that values which a program would share with the one that initialised them start in the same way, but for
    /// parameters, which are meant to be shared.
    ///
    /// # Errors
    /// A value with another initialiser.
    pub fn check_shared(&self, new: &Initialisers, startup: &Program) -> Result<()> {
        let is_parameter = |name: &str| {
            let desc = startup.find(name).and_then(|var| startup.root().vars.get(&var));
            desc.is_some_and(|desc| desc.parameter)
        };
        let Some((name, known, op)) = self.clash(new, |name| !is_parameter(name)) else { return Ok(()) };
        let text = format!(
            "two programs would share `{name}`, which another one has initialised, {}, and this one initialises \
             otherwise, {}: give the optimizer or layer a name of its own, such as `.name(\"critic\")`, or use another \
             scope",
            InitialiserText(known),
            InitialiserText(op)
        );
        Err(Error::new(ErrorKind::Program, text))
    }

    /// The first of the wanted values whose initialisers differ, with both.
    fn clash<'a>(
        &'a self,
        new: &'a Initialisers,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Option<(&'a str, &'a OpDesc, &'a OpDesc)> {
        let differ = |known: &OpDesc, op: &OpDesc| known.ty != op.ty || known.attrs != op.attrs;
        let both = new.0.iter().filter_map(|(name, op)| Some((name.as_str(), &**self.0.get(name)?, &**op)));
        let clash = both.filter(|(name, known, op)| differ(known, op) && is_wanted(name));
        clash.min_by_key(|(name, ..)| *name)
    }

    /// Records that these operators have initialised values.
    pub fn record(&mut self, new: &Initialisers) {
        for (name, op) in &new.0 {
            match self.0.get_mut(name) {
                Some(known) => known.clone_from(op),
                None => drop(self.0.insert(name.clone(), op.clone())),
            }
        }
    }

    /// Forgets the initialiser of a value that is removed.
    pub fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }
}

/// The operator and its source line.
struct InitialiserText<'a>(&'a OpDesc);

impl fmt::Display for InitialiserText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by `{}`", self.0.ty)?;
        self.0.site.iter().try_for_each(|site| write!(f, " at {site}"))
    }
}
