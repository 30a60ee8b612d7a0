//! A program lowered to StableHLO: the interface between `lower`, which writes the text, and `pjrt`, which runs it.

use std::collections::HashSet;

use autobwd::{DType, Error, ErrorKind, Result};

/// A StableHLO module, and the meaning of the arguments and results of its function `main`.
///
/// ```
/// use autobwd::DType;
/// use autobwd_xla::{Argument, Lowered, Output};
///
/// // One step of `w = w + x`, which also returns `w` before the step.
/// let lowered = Lowered {
///     text: "module @step {
///       func.func public @main(%x: tensor<2xf32>, %w: tensor<2xf32> {tf.aliasing_output = 1 : i32})
///           -> (tensor<2xf32>, tensor<2xf32>) {
///         %sum = stablehlo.add %w, %x : tensor<2xf32>
///         return %w, %sum : tensor<2xf32>, tensor<2xf32>
///       }
///     }"
///     .into(),
///     arguments: vec![
///         Argument::feed("x", DType::F32, [2]),
///         Argument::state("w", DType::F32, [2]).donated(),
///     ],
///     results: vec![Output::fetch("old", DType::F32, [2]), Output::state("w", DType::F32, [2])],
///     replicas: 1,
///     partitions: 1,
/// };
/// lowered.check()?;
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// The StableHLO module as text.
    pub text: String,
    /// The arguments of `main`, in order.
    pub arguments: Vec<Argument>,
    /// The results of `main`, in order.
    pub results: Vec<Output>,
    /// The number of devices that run the program, each on data of its own.
    pub replicas: usize,
    /// The number of devices among which tensors are divided (`mhlo.num_partitions`).
    pub partitions: usize,
}

/// An argument of [`Lowered`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The variable of the program.
    pub name: String,
    /// Where its value comes from.
    pub source: Source,
    /// Element type.
    pub dtype: DType,
    /// Shape, of the part on a device if it is divided.
    pub dims: Vec<usize>,
    /// The dimension along which it is divided among the devices.
    pub axis: Option<usize>,
    /// Whether the text gives its memory to a result (`tf.aliasing_output`, `jax.buffer_donor`). The value cannot be
    /// read after the run, so a donated state needs a result that replaces it.
    pub donated: bool,
}

/// The origin of an argument's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The caller of the run.
    Feed,
    /// The scope: parameters, optimizer states, statistics.
    State,
}

/// A result of [`Lowered`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The variable of the program.
    pub name: String,
    /// Where its value goes.
    pub target: Target,
    /// Element type.
    pub dtype: DType,
    /// Shape, of the part on a device if it is divided.
    pub dims: Vec<usize>,
    /// The dimension along which it is divided among the devices.
    pub axis: Option<usize>,
}

/// The destination of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The caller of the run.
    Fetch,
    /// The scope, under the name of the result.
    State,
}

impl Argument {
    /// An argument that the caller of the run feeds.
    pub fn feed(name: impl Into<String>, dtype: DType, dims: impl Into<Vec<usize>>) -> Argument {
        Argument {
            name: name.into(),
            source: Source::Feed,
            dtype,
            dims: dims.into(),
            axis: None,
            donated: false,
        }
    }

    /// An argument whose value is in the scope.
    pub fn state(name: impl Into<String>, dtype: DType, dims: impl Into<Vec<usize>>) -> Argument {
        Argument { source: Source::State, ..Argument::feed(name, dtype, dims) }
    }

    /// The same argument, donated.
    #[must_use]
    pub fn donated(self) -> Argument {
        Argument { donated: true, ..self }
    }
}

impl Output {
    /// A result for the caller of the run.
    pub fn fetch(name: impl Into<String>, dtype: DType, dims: impl Into<Vec<usize>>) -> Output {
        Output { name: name.into(), target: Target::Fetch, dtype, dims: dims.into(), axis: None }
    }

    /// A result that becomes a value of the scope.
    pub fn state(name: impl Into<String>, dtype: DType, dims: impl Into<Vec<usize>>) -> Output {
        Output { target: Target::State, ..Output::fetch(name, dtype, dims) }
    }
}

impl Lowered {
    /// Checks the arguments and results against each other.
    ///
    /// # Errors
    /// Two arguments or two results of one name and kind; a donated state that no result replaces, or that a result of
    /// another dtype or shape replaces.
    pub fn check(&self) -> Result<()> {
        let mut seen = HashSet::new();
        if let Some(a) = self.arguments.iter().find(|a| !seen.insert(a.name.as_str())) {
            return Err(invalid(format!("two arguments have the name `{}`", a.name)));
        }
        let mut seen = HashSet::new();
        if let Some(r) = self.results.iter().find(|r| !seen.insert((r.name.as_str(), r.target))) {
            return Err(invalid(format!("two results have the name `{}`", r.name)));
        }
        for a in self.arguments.iter().filter(|a| a.donated && a.source == Source::State) {
            let replaces = |r: &&Output| r.target == Target::State && r.name == a.name;
            match self.results.iter().find(replaces) {
                None => return Err(invalid(format!("no result replaces the donated state `{}`", a.name))),
                Some(r) if r.dtype != a.dtype || r.dims != a.dims => {
                    return Err(invalid(format!(
                        "the donated state `{}` is {} {:?}, and the result that replaces it is {} {:?}",
                        a.name, a.dtype, a.dims, r.dtype, r.dims
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Program, format!("lowered program: {message}"))
}
