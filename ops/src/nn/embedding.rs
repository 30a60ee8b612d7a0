use autobwd::{Builder, DType, Expr, New, emit};

use super::{layer_name, parameter, weight_name};
use crate::{Init, embedding::LookupTableV2};

/// Embedding look-up: `out = w[ids]`, rows of a learned table.
///
/// With a [sparse](EmbeddingBuilder::sparse) gradient, the memory of a step depends on the number of rows looked up,
/// not on the size of the table. So does its time with `Sgd`, and with `Momentum` and `Adam` if they are `lazy`;
/// otherwise these two change every row in every step.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Meta, Scope, Tensor};
/// use autobwd_ops::{Math, nn::Embedding, optim::{Adam, Optimizer}};
///
/// let net = Builder::new();
/// let words = net.input("words", DType::I64, &[-1]);
/// let table = Embedding::builder(&net, 50_000, 16).sparse().seed(7).build();
/// let loss = table.forward(&words).square().mean();
/// let updated = Adam { lazy: true, ..Adam::new(0.01) }.minimize(&loss)?.complete()?;
/// let gradient = updated[0].1.name();
///
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// let feeds = [("words", Meta::new(DType::I64, [4]))];
/// let mut session = executor.prepare(&net.program()?, &mut scope, &feeds, &[&gradient])?;
/// session.feed("words", &Tensor::from_vec([4], vec![7_i64, 40_000, 7, 123])?)?;
/// session.run(&mut scope)?;
/// assert_eq!(session.rows::<f32>(&gradient)?.indices(), [7, 123, 40_000]);
/// assert_eq!(session.fetch(&gradient)?.dims(), [50_000, 16]);
/// // These rows only: the whole table would take 3.2 MB.
/// assert!(session.arena_bytes() < 2_000);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Debug)]
pub struct Embedding {
    /// The table, `[rows, width]`.
    pub weight: Expr,
    padding: Option<usize>,
    sparse: bool,
}

/// Builder of an [`Embedding`] layer.
#[derive(Debug)]
pub struct EmbeddingBuilder<'a> {
    net: &'a Builder,
    name: Option<String>,
    dims: [usize; 2],
    dtype: DType,
    weight: Init,
    padding: Option<usize>,
    sparse: bool,
    seed: i32,
    is_torch: bool,
}

impl Embedding {
    /// A table of `rows` rows: float32, normal with standard deviation 1, with a dense gradient.
    pub fn builder(net: &Builder, rows: usize, width: usize) -> EmbeddingBuilder<'_> {
        let weight = Init::Normal(0.0, 1.0);
        let dims = [rows, width];
        EmbeddingBuilder {
            net,
            name: None,
            dims,
            dtype: DType::F32,
            weight,
            padding: None,
            sparse: false,
            seed: 0,
            is_torch: false,
        }
    }

    /// The rows with indices `ids`, int64 or int32 of any shape; the result has one dimension more. Fails for another
    /// dtype.
    #[track_caller]
    pub fn forward(&self, ids: &Expr) -> Expr {
        let (ids, w) = (ids.into(), (&self.weight).into());
        let padding_idx = self.padding.map_or(-1, |row| row as i64);
        emit(LookupTableV2 { ids, w, out: New, padding_idx, is_sparse: self.sparse }).out
    }
}

impl EmbeddingBuilder<'_> {
    super::layer_setters!(name, dtype, init, seed, torch);

    /// Sets the padding index, whose row reads as zeros and has no gradient.
    #[must_use]
    pub fn padding(self, number: usize) -> Self {
        EmbeddingBuilder { padding: Some(number), ..self }
    }

    /// Makes the gradient sparse: it holds the looked-up rows only.
    #[must_use]
    pub fn sparse(self) -> Self {
        EmbeddingBuilder { sparse: true, ..self }
    }

    /// Adds the table, `embedding_0.w`, to the program.
    #[track_caller]
    pub fn build(self) -> Embedding {
        let layer = layer_name(self.net, "embedding", self.name.as_deref());
        let name = weight_name(&layer, "w", self.is_torch);
        let weight = parameter(self.net, &name, self.dtype, &self.dims, self.weight, self.seed);
        Embedding { weight, padding: self.padding, sparse: self.sparse }
    }
}
