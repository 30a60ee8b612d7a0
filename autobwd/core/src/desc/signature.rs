//! The signature of a program: its inputs and outputs, under names for its users.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::Program;
use crate::{Error, ErrorKind, Result};

/// The inputs and outputs of a program, under names that do not change when its variables do. It is part of the program:
/// copies and edits of the program have it, and so does its JSON.
///
/// ```
/// use autobwd::{Builder, DType, Program};
/// use autobwd_ops::{Math, nn::Linear};
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 4]);
/// let scores = Linear::builder(&net, 4, 2).build().forward(&x).softmax(-1);
/// net.set_signature(&[("image", &x)], &[("scores", &scores)])?;
///
/// let loaded = Program::from_json(&net.program()?.to_json())?;
/// assert_eq!(loaded.describe_signature(), "(image: float32 [-1, 4]) -> (scores: float32 [-1, 2])");
/// assert_eq!(loaded.signature().outputs[0].variable, scores.name());
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramSignature {
    /// What is fed, in order.
    pub inputs: Vec<SignatureEntry>,
    /// What is fetched, in order.
    pub outputs: Vec<SignatureEntry>,
}

/// An input or output of a [`ProgramSignature`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignatureEntry {
    /// The name for users.
    pub name: String,
    /// The name of the variable.
    pub variable: String,
}

impl ProgramSignature {
    /// Whether there are neither inputs nor outputs, as before one is set.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.outputs.is_empty()
    }

    /// The variable of an input.
    ///
    /// # Errors
    /// An unknown name; the message lists the names.
    pub fn input(&self, name: &str) -> Result<&str> {
        find(&self.inputs, "input", name)
    }

    /// The variable of an output.
    ///
    /// # Errors
    /// An unknown name; the message lists the names.
    pub fn output(&self, name: &str) -> Result<&str> {
        find(&self.outputs, "output", name)
    }
}

fn find<'a>(entries: &'a [SignatureEntry], what: &str, name: &str) -> Result<&'a str> {
    let found = entries.iter().find(|entry| entry.name == name);
    found.map(|entry| entry.variable.as_str()).ok_or_else(|| {
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        let text = format!("the signature has no {what} `{name}`, only `{}`", names.join("`, `"));
        Error::new(ErrorKind::UnknownVar, text)
    })
}

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
