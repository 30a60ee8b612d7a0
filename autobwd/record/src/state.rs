//! The state of a run: the values of a scope that a program writes, and small values that it reads.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use autobwd_core::{Error, ErrorKind, OpDesc, Program, Result, Tensor, Var};
use autobwd_exec::Scope;

use crate::{
    digest::Digest,
    line::{Header, StateHash},
};

/// The largest value that counts to the state although the program does not write it, in bytes. Learning rates and the
/// like are small, and callers may change them between steps; frozen weights are large.
const SETTING: usize = 1024;

/// The names of the values of a scope that a program uses, sorted.
#[derive(Clone, Debug)]
pub(crate) struct StateNames {
    /// Values that the program writes; the scope may lack some before the first step.
    written: BTreeSet<String>,
    /// Small values that the program does not write.
    pub(crate) settings: BTreeSet<String>,
    /// Large values that the program does not write.
    constants: BTreeSet<String>,
}

impl StateNames {
    /// The names before the first step.
    pub(crate) fn of(program: &Program, scope: &Scope) -> StateNames {
        let written: HashSet<Var> = program.root().ops.iter().flat_map(OpDesc::writes).collect();
        let mut names =
            StateNames { written: BTreeSet::new(), settings: BTreeSet::new(), constants: BTreeSet::new() };
        for (var, _) in program.root().vars.iter().filter(|(_, desc)| desc.persistable) {
            let name = program.name(*var);
            let set = match scope.find(name) {
                _ if written.contains(var) => &mut names.written,
                Some(value) if value.bytes().len() <= SETTING => &mut names.settings,
                Some(_) => &mut names.constants,
                None => continue,
            };
            set.insert(name.into());
        }
        names
    }

    /// The names in the first line of the record of a run of this program.
    pub(crate) fn of_header(program: &Program, header: &Header) -> StateNames {
        let settings = header.settings.clone();
        let constants = header.constants.keys().cloned().collect();
        StateNames { settings, constants, ..StateNames::of(program, &Scope::new()) }
    }

    /// The values of the state.
    pub(crate) fn state<'a>(&'a self, scope: &'a Scope) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
        let names = self.written.union(&self.settings);
        names.filter_map(|name| Some((name.as_str(), scope.find(name)?)))
    }

    /// The digests of the large values that the program only reads.
    ///
    /// # Errors
    /// Memory runs out.
    pub(crate) fn constants(&self, scope: &Scope) -> Result<BTreeMap<String, Digest>> {
        let found = self.constants.iter().filter_map(|name| Some((name, scope.find(name)?)));
        found.map(|(name, value)| Ok((name.clone(), Digest::of_value(value)?))).collect()
    }
}

/// The hash of a state: the SHA-256 of a JSON object of the names, sorted, and the digests of the values.
///
/// # Errors
/// Memory runs out.
pub(crate) fn state_hash<'a>(
    step: u64,
    values: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<StateHash> {
    let digests = values.into_iter().map(|(name, value)| Ok((name, Digest::of_value(value)?)));
    let digests: BTreeMap<&str, Digest> = digests.collect::<Result<_>>()?;
    let text = serde_json::to_vec(&digests)
        .map_err(|e| Error::new(ErrorKind::Format, format!("cannot write a state as JSON: {e}")))?;
    let values = digests.iter().map(|(name, digest)| (name.to_string(), digest.short())).collect();
    Ok(StateHash { step, state: Digest::of([&text[..]]), values })
}

/// The names whose values differ in two maps, or are in one of them alone.
pub(crate) fn different_names<T: PartialEq>(a: &BTreeMap<String, T>, b: &BTreeMap<String, T>) -> Vec<String> {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    names.into_iter().filter(|name| a.get(*name) != b.get(*name)).cloned().collect()
}
