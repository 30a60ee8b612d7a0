//! Reads cases without interpreting them: programs stay JSON here.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use autobwd::{Tensor, tensor::load_tensors};
use serde::Deserialize;
use serde_json::Value;

use super::{Difference, Outcome};

/// A program and the reference's results for it.
#[derive(Clone, Deserialize)]
pub struct CorpusCase {
    /// Its name.
    pub name: String,
    /// The first call, with the program before and after.
    #[serde(flatten)]
    pub first: CorpusStep,
    /// Further calls on the same program.
    #[serde(default)]
    pub then: Vec<CorpusStep>,
    /// Names whose values are recorded.
    #[serde(default)]
    pub fetch: Vec<String>,
    /// By leaf: the relative difference of the recorded gradient from central differences.
    #[serde(default)]
    pub fd_check: BTreeMap<String, Option<f64>>,
    /// The reference's error in this case, if any.
    #[serde(default)]
    pub quirk: Option<String>,
    /// `feed/NAME`, `param/NAME` and `fetch/NAME` with their values.
    #[serde(skip)]
    pub tensors: Vec<(String, Tensor)>,
}

/// One backward build.
#[derive(Clone, Deserialize)]
pub struct CorpusStep {
    /// The arguments of the call.
    pub call: CorpusCall,
    /// The number of earlier backward passes.
    #[serde(default)]
    pub calls_before: u32,
    /// The program before.
    pub forward: Value,
    /// The program after; `None` if the reference fails.
    pub backward: Option<Value>,
    /// The result of the call.
    pub result: Option<Value>,
    /// The exception if the reference fails.
    #[serde(default)]
    pub error: Option<Refusal>,
}

/// The reference's exception.
#[derive(Clone, Deserialize)]
pub struct Refusal {
    /// Its class.
    #[serde(rename = "type")]
    pub class: String,
}

/// The arguments of a backward build, by name; `None` if absent.
#[derive(Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum CorpusCall {
    AppendBackward {
        loss: String,
        parameter_list: Option<Vec<String>>,
        no_grad_set: Option<Vec<String>>,
        checkpoints: Option<Vec<String>>,
    },
    Gradients {
        targets: Vec<String>,
        inputs: Vec<String>,
        target_gradients: Option<Vec<Option<String>>>,
        no_grad_set: Option<Vec<String>>,
    },
}

/// Requested variables, each with the name of its gradient.
pub type Answer = Vec<(String, Option<String>)>;

impl CorpusCase {
    /// Reads a case and its file of values.
    ///
    /// # Errors
    /// Files that cannot be read, or do not have the corpus' format.
    pub fn load(path: &Path) -> Result<CorpusCase, Difference> {
        let bad = |e: &dyn std::fmt::Display| Difference::new(format!("cannot read {}: {e}", path.display()));
        let text = fs::read_to_string(path).map_err(|e| bad(&e))?;
        let mut case: CorpusCase = serde_json::from_str(&text).map_err(|e| bad(&e))?;
        case.tensors = load_tensors(path.with_extension("safetensors"))?;
        Ok(case)
    }

    /// All calls, in order.
    pub fn steps(&self) -> impl Iterator<Item = &CorpusStep> {
        std::iter::once(&self.first).chain(&self.then)
    }

    /// Names and values whose key starts with `kind/`.
    pub fn values<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
        let of_kind = move |key: &'a str| key.strip_prefix(kind).and_then(|rest| rest.strip_prefix('/'));
        self.tensors.iter().filter_map(move |(key, value)| Some((of_kind(key)?, value)))
    }
}

impl CorpusStep {
    /// The reference's result, in one form for both kinds of calls: a parameter without gradient variable is absent, a
    /// single missing input is `None`.
    ///
    /// # Errors
    /// A result of another form.
    pub fn recorded(&self) -> Result<Answer, Difference> {
        let bad = |e: serde_json::Error| Difference::new(format!("the case's `result` is not readable: {e}"));
        let Some(result) = self.result.clone() else { return Ok(vec![]) };
        match &self.call {
            CorpusCall::AppendBackward { .. } => {
                let pairs: Answer = serde_json::from_value(result).map_err(bad)?;
                Ok(pairs.into_iter().filter(|(_, grad)| grad.is_some()).collect())
            }
            CorpusCall::Gradients { inputs, .. } => {
                let mut grads: Vec<Option<String>> = serde_json::from_value(result).map_err(bad)?;
                if grads.is_empty() && inputs.len() == 1 {
                    grads.push(None);
                }
                Ok(inputs.iter().cloned().zip(grads).collect())
            }
        }
    }
}

impl CorpusCall {
    /// The same call with other names.
    pub fn renamed(&self, new: impl Fn(&str) -> String) -> CorpusCall {
        let all = |names: &Vec<String>| names.iter().map(|n| new(n)).collect::<Vec<_>>();
        let list = |names: &Option<Vec<String>>| names.as_ref().map(all);
        match self {
            CorpusCall::AppendBackward { loss, parameter_list, no_grad_set, checkpoints } => {
                CorpusCall::AppendBackward {
                    loss: new(loss),
                    parameter_list: list(parameter_list),
                    no_grad_set: list(no_grad_set),
                    checkpoints: list(checkpoints),
                }
            }
            CorpusCall::Gradients { targets, inputs, target_gradients, no_grad_set } => {
                CorpusCall::Gradients {
                    targets: all(targets),
                    inputs: all(inputs),
                    target_gradients: target_gradients
                        .as_ref()
                        .map(|given| given.iter().map(|name| name.as_deref().map(&new)).collect()),
                    no_grad_set: list(no_grad_set),
                }
            }
        }
    }

    /// Every name in the call.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&String> = vec![];
        match self {
            CorpusCall::AppendBackward { loss, parameter_list, checkpoints, .. } => {
                names.push(loss);
                names.extend(parameter_list.iter().chain(checkpoints).flatten());
            }
            CorpusCall::Gradients { targets, inputs, target_gradients, .. } => {
                names.extend(targets.iter().chain(inputs));
                names.extend(target_gradients.iter().flatten().flatten());
            }
        }
        names.into_iter().map(String::as_str).chain(self.no_grad()).collect()
    }

    /// The no-grad set of the call.
    pub fn no_grad(&self) -> Vec<&str> {
        let (CorpusCall::AppendBackward { no_grad_set, .. } | CorpusCall::Gradients { no_grad_set, .. }) =
            self;
        no_grad_set.iter().flatten().map(String::as_str).collect()
    }

    /// Whether the call recomputes forward values.
    pub fn recomputes(&self) -> bool {
        matches!(self, CorpusCall::AppendBackward { checkpoints: Some(names), .. } if !names.is_empty())
    }
}

/// A file of the corpus: the case, or the error in reading it.
pub struct CorpusEntry {
    /// The file's name without extension.
    pub name: String,
    /// The case.
    pub case: Result<CorpusCase, Difference>,
}

impl CorpusEntry {
    /// Compares the case; an unreadable file fails.
    pub fn check(&self, ops: &autobwd::OpInfoMap) -> Outcome {
        match &self.case {
            Ok(case) => super::check(case, ops),
            Err(e) => Outcome::Failed(e.to_string()),
        }
    }
}

/// The cases of a folder that contains the files, or a `cases/` with them, sorted by name; only cases whose name
/// contains `filter`.
///
/// # Errors
/// A folder that cannot be listed or has no cases.
pub fn load_folder(folder: &Path, filter: &str) -> Result<Vec<CorpusEntry>, Difference> {
    let inner = folder.join("cases");
    let folder = if inner.is_dir() { inner.as_path() } else { folder };
    let bad = |e: std::io::Error| Difference::new(format!("cannot list {}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = vec![];
    for entry in fs::read_dir(folder).map_err(bad)? {
        let path = entry.map_err(bad)?.path();
        if path.extension().is_some_and(|e| e == "json") {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(Difference::new(format!(
            "{} holds no .json files, nor a cases/ with some",
            folder.display()
        )));
    }
    paths.sort();
    let name = |path: &Path| path.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let named = paths.iter().map(|path| (name(path), path)).filter(|(name, _)| name.contains(filter));
    Ok(named.map(|(name, path)| CorpusEntry { name, case: CorpusCase::load(path) }).collect())
}
