//! The names of variables in a program.

use std::fmt::Write as _;

use super::{BlockId, Program, Var, check_name, program::next_stamp};
use crate::{Error, ErrorKind, Result};

/// The most decimal digits of the number in a name.
const MOST_DIGITS: usize = 10;

impl Program {
    /// The variable of this name, in whichever block it is declared. Adds the name if it is new.
    pub fn var(&mut self, name: &str) -> Var {
        Var(self.names.insert(name).0)
    }

    /// The variable named as the gradient of another, `w@GRAD`. Adds the name if it is new.
    pub(crate) fn gradient_var(&mut self, var: Var) -> Var {
        Var(self.names.insert_gradient(var.index()).0)
    }

    /// The variable of this name, if the program uses it.
    pub fn find(&self, name: &str) -> Option<Var> {
        self.names.find(name).map(Var)
    }

    /// A variable with a new name: `prefix_0`, `prefix_1`, ….
    pub fn fresh(&mut self, prefix: &str) -> Var {
        self.numbered(prefix, "_")
    }

    fn numbered(&mut self, prefix: &str, separator: &str) -> Var {
        let known = self.counters.get_index_of(prefix);
        let counter = known.unwrap_or_else(|| self.counters.insert_full(prefix.into(), 0).0);
        let next = &mut self.counters[counter];
        let len = prefix.len() + separator.len();
        let mut name = String::with_capacity(len + MOST_DIGITS);
        name.extend([prefix, separator]);
        loop {
            name.truncate(len);
            // Writing to a string does not fail.
            let _ = write!(name, "{next}");
            let (index, new) = self.names.insert(&name);
            *next += 1;
            if new {
                return Var(index);
            }
        }
    }

    /// As [`fresh`](Program::fresh), with the number directly after the prefix.
    pub(crate) fn fresh_var(&mut self, prefix: &str) -> Var {
        self.numbered(prefix, "")
    }

    /// Removes all names except the first `count`. The others must be unused.
    pub(crate) fn forget_names(&mut self, count: usize) {
        for name in (count..self.names.len()).filter_map(|i| self.names.get(i)) {
            let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
            let Ok(number) = name[prefix.len()..].parse::<u32>() else { continue };
            // A counter is where a search starts, so a smaller one is also correct.
            for prefix in [Some(prefix), prefix.strip_suffix('_')].into_iter().flatten() {
                if let Some(counter) = self.counters.get_mut(prefix) {
                    *counter = number.min(*counter);
                }
            }
        }
        self.names.truncate(count);
    }

    /// Renames a variable of this block that an operator computes before one reads it: another one has a value from
    /// outside, by its name.
    ///
    /// # Errors
    /// Another variable; a name in use or that no variable can have.
    pub(crate) fn rename(&mut self, block: BlockId, var: Var, name: &str) -> Result<()> {
        check_name(name)?;
        let own = self.block(block).filter(|block| block.vars.contains_key(&var));
        let ops = own.map_or(&[][..], |block| &block.ops);
        let first = ops.iter().find(|op| op.reads().chain(op.writes()).any(|v| v == var));
        let is_computed = first.is_some_and(|op| op.reads().all(|v| v != var));
        let is_kept = self.lookup(block, var).is_some_and(|desc| desc.persistable);
        let old = self.name(var).to_string();
        let refuse = |why: &str| {
            let text = format!("`{old}` cannot be named `{name}`: {why}");
            Err(Error::new(ErrorKind::UnknownVar, text))
        };
        if !is_computed || is_kept {
            return refuse("only values that operators of the current block compute get other names");
        }
        if old == name {
            return Ok(());
        }
        if !self.names.rename(var.index(), name) {
            return refuse("the program has a variable of that name, or a gradient of one of both");
        }
        let entries = self.signature.inputs.iter_mut().chain(&mut self.signature.outputs);
        entries.filter(|entry| entry.variable == old).for_each(|entry| entry.variable = name.into());
        self.stamp = next_stamp();
        Ok(())
    }

    /// Adds a name for each one that a later state of this program has in addition, so that no new variable gets the
    /// number of one that an expression still names. It is the same name, unless an older variable has it again.
    pub(crate) fn keep_names(&mut self, later: &Program) {
        for name in (self.names.len()..later.names.len()).filter_map(|i| later.names.get(i)) {
            if !self.names.insert(name).1 {
                self.fresh(name);
            }
        }
    }

    /// The name of a variable of this program.
    pub fn name(&self, var: Var) -> &str {
        self.names.get(var.index()).unwrap_or("a variable of another program")
    }

    /// The number of names, and the bound of [`Var::index`].
    pub fn name_count(&self) -> usize {
        self.names.len()
    }
}
