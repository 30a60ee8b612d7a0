//! The signature of a program: setting it, and its text.

use std::collections::HashSet;

use super::{Program, ProgramSignature, SignatureEntry};
use crate::{Error, ErrorKind, Result};

impl Program {
    /// The signature with dtypes and shapes: `(image: float32 [-1, 4]) -> (scores: float32 [-1, 2])`.
    pub fn describe_signature(&self) -> String {
        let entry = |entry: &SignatureEntry| {
            let var = self.find(&entry.variable).and_then(|var| self.root().vars.get(&var));
            format!("{}: {}", entry.name, var.map_or_else(String::new, |desc| desc.meta().to_string()))
        };
        let list = |all: &[SignatureEntry]| all.iter().map(entry).collect::<Vec<_>>().join(", ");
        format!("({}) -> ({})", list(&self.signature.inputs), list(&self.signature.outputs))
    }

    /// The named inputs and outputs; empty unless they are set.
    pub fn signature(&self) -> &ProgramSignature {
        &self.signature
    }

    /// Sets the named inputs and outputs. [`Builder::set_signature`](crate::Builder::set_signature) does so with
    /// expressions.
    ///
    /// # Errors
    /// An empty name; two inputs or two outputs of one name; a variable that the root block does not declare; an input
    /// that the scope keeps.
    pub fn set_signature(&mut self, signature: ProgramSignature) -> Result<()> {
        for (what, entries) in [("input", &signature.inputs), ("output", &signature.outputs)] {
            let mut names = HashSet::new();
            for SignatureEntry { name, variable } in entries {
                let refuse = |text: String| {
                    Error::new(ErrorKind::Program, format!("{what} `{name}` of the signature: {text}"))
                };
                if name.is_empty() || !names.insert(name) {
                    return Err(refuse("names are not empty, and differ".into()));
                }
                let var = self.expect_var(variable).map_err(|e| refuse(e.message().into()))?;
                let is_kept = self.root().vars.get(&var).is_some_and(|desc| desc.persistable);
                if what == "input" && is_kept {
                    return Err(refuse(format!("`{variable}` is not fed, the scope keeps it")));
                }
            }
        }
        self.signature = signature;
        Ok(())
    }
}
