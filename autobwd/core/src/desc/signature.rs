//! The signature of a program: its inputs and outputs, under names for its users.

use serde::{Deserialize, Serialize};

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
