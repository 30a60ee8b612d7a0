//! Low-rank adapters (LoRA; Hu et al., 2022) as a pass over programs.

mod dropout;
mod modules;

use modules::is_named;
pub use modules::linear_targets;
pub(crate) use modules::{head, transformers_module};

use std::collections::BTreeMap;

use autobwd::{
    BlockId, Builder, DType, Error, ErrorKind, Executor, OpDesc, Program, Result, Scope, VarDesc,
    op::Op as _,
    operators::{Cast, ElementwiseAdd, Scale},
    program::{Origin, Var},
};
use autobwd_ops::{
    Init, Model,
    matmul::{MatmulV2, QuantizedMatmul},
};

/// Low-rank adapters: a product `x · Wᵀ` becomes `x · Wᵀ + s · (x · Aᵀ) · Bᵀ`, in which `A` is `[rank, inputs]`, `B` is
/// `[outputs, rank]`, and `s = alpha / rank`. `W` is frozen, and may be quantised or have 16 bits; `A` and `B` are float32,
/// and converted for products in 16 bits.
///
/// ```
/// use autobwd_models::{Lora, Pretrained};
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama");
/// let mut model = Pretrained::open(folder).load()?;
/// let trained = Lora::new(8, &["q_proj", "v_proj"]).attach(&mut model)?;
/// assert_eq!(trained.len(), 8);
/// assert_eq!(trained[0], "model.layers.0.self_attn.q_proj.lora_A.weight");
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// The number of rows of `A` and of columns of `B`.
    pub rank: usize,
    /// The scale of branches times their rank.
    pub alpha: f64,
    /// Whether `s = alpha / √rank` (Kalajdzievski, 2023).
    pub is_rank_stabilized: bool,
    /// The modules with a branch: whole names, or their last parts, such as `q_proj`.
    pub targets: Vec<String>,
    /// Also the modules whose whole names this regular expression matches, whatever `layers` are.
    pub pattern: Option<String>,
    /// Modules without a branch, named as targets are.
    pub excluded: Vec<String>,
    /// The numbers of the layers whose targets have branches, such as the 3 of `model.layers.3.self_attn.q_proj`; of all
    /// layers, if it is empty.
    pub layers: Vec<usize>,
    /// The names of the lists whose layers are numbered, such as `layers`; by default, the first list in a module's name.
    pub layer_lists: Vec<String>,
    /// The probability that an element of the input of a branch is dropped in training, by [`Lora::add_dropout`].
    pub dropout: f64,
    /// Ranks of some modules, by their names or their last parts, or by regular expressions of these; the first that
    /// matches counts.
    pub ranks: Vec<(String, usize)>,
    /// Alphas of some modules, likewise.
    pub alphas: Vec<(String, f64)>,
    /// Ends of the names of modules that are trained as a whole, such as a new `classifier`.
    pub saved_modules: Vec<String>,
    /// The seed of the initial values of `A`, which are uniform in `±1/√inputs`; `B` is 0 at first.
    pub seed: i32,
}

/// A product whose weights get a branch.
struct Product {
    /// The position of the operator in the root block.
    at: usize,
    module: String,
    x: Var,
    out: Var,
    inputs: usize,
    outputs: usize,
    /// Whether the weights are `[inputs, outputs]`, as GPT-2 has them.
    is_input_first: bool,
    /// What its result is declared as.
    result: VarDesc,
}

impl Lora {
    /// Adapters of a rank for the modules with these names, or names that end so: `alpha` is 8.
    pub fn new(rank: usize, targets: &[&str]) -> Lora {
        Lora {
            rank,
            alpha: 8.0,
            is_rank_stabilized: false,
            targets: targets.iter().map(ToString::to_string).collect(),
            pattern: None,
            excluded: vec![],
            layers: vec![],
            layer_lists: vec![],
            dropout: 0.0,
            ranks: vec![],
            alphas: vec![],
            saved_modules: vec![],
            seed: 0,
        }
    }

    /// The rank and the scale of a module's branch.
    pub(crate) fn of_module(&self, module: &str) -> (usize, f64) {
        let own = |name: &String| modules::ends_with_match(module, name);
        let rank = self.ranks.iter().find(|(name, _)| own(name)).map_or(self.rank, |(_, rank)| *rank);
        let alpha = self.alphas.iter().find(|(name, _)| own(name)).map_or(self.alpha, |(_, alpha)| *alpha);
        let divisor = if self.is_rank_stabilized { (rank as f64).sqrt() } else { rank as f64 };
        (rank, alpha / divisor)
    }

    /// Whether a module, or one that it is a part of, is trained as a whole.
    pub(crate) fn saves(&self, module: &str) -> bool {
        let ends = module.match_indices('.').map(|(at, _)| at).chain([module.len()]);
        let mut wholes = ends.map(|end| &module[..end]);
        wholes.any(|whole| self.saved_modules.iter().any(|end| whole.ends_with(end.as_str())))
    }

    /// Adds a branch to each product with the weights of a target, with initial values, and freezes all other parameters
    /// but saved modules. Returns the names of the parameters that are trained.
    ///
    /// The parameters of the branch of a module `m` are `m.lora_A.weight` and `m.lora_B.weight`.
    ///
    /// # Errors
    /// A target that no product has; an invalid regular expression; a rank of 0, or beyond the sizes of a product; a
    /// program with a backward pass, or with adapters: the model is then unchanged.
    pub fn attach(&self, model: &mut Model) -> Result<Vec<String>> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Program, text));
        let mut program = model.program.clone();
        if program.root().ops.iter().any(|op| matches!(op.origin, Origin::Gradient { .. })) {
            return refuse("adapters are attached before the backward pass is appended".into());
        }
        self.check()?;
        let products = self.products(&program);
        let unused = |target: &&String| products.iter().all(|product| !is_named(&product.module, target));
        if let Some(target) = self.targets.iter().find(unused) {
            let all = Lora::new(1, &[target]).products(&program);
            return refuse(match all.is_empty() {
                true => format!("no product has weights of a module `{target}`"),
                false => {
                    format!("all modules `{target}` are excluded, in other layers, or trained as a whole")
                }
            });
        }
        if let Some(pattern) = self.pattern.as_ref().filter(|_| products.is_empty()) {
            return refuse(format!(
                "no product has weights of a module whose whole name matches `{pattern}`"
            ));
        }
        let parameters: Vec<Var> = program.parameters().collect();
        for var in parameters {
            let is_saved = program.name(var).rsplit_once('.').is_some_and(|(module, _)| self.saves(module));
            if let Some(desc) = program.root_mut().vars.get_mut(&var) {
                desc.stop_gradient |= !is_saved;
            }
        }
        let initial = Builder::new();
        let mut branches = BTreeMap::new();
        for product in products {
            let (rank, _) = self.of_module(&product.module);
            let largest = product.inputs.max(product.outputs);
            if rank == 0 || rank > largest {
                let module = &product.module;
                return refuse(format!("the rank of `{module}` is {rank}, not a number from 1 to {largest}"));
            }
            let bound = 1.0 / (product.inputs.max(1) as f64).sqrt();
            let parts = [
                ("lora_A", [rank, product.inputs], Init::Uniform(-bound, bound)),
                ("lora_B", [product.outputs, rank], Init::Constant(0.0)),
            ];
            let mut factors = vec![];
            for (part, dims, init) in parts {
                let name = format!("{}.{part}.weight", product.module);
                if program.find(&name).is_some() {
                    return refuse(format!("`{}` has an adapter already", product.module));
                }
                initial.parameter(&name, DType::F32, &dims, |x| init.emit(x, self.seed));
                let var = program.var(&name);
                program.root_mut().vars.insert(var, VarDesc::parameter(DType::F32, dims.into()));
                factors.push(var);
            }
            branches.insert(product.at, (product, [factors[0], factors[1]]));
        }
        let mut values = Scope::new();
        Executor::new().run(&initial.startup().program()?, &mut values, &[], &[])?;
        self.insert(&mut program, &branches);
        autobwd::verify(&program)?;
        model.program = program;
        values.iter().for_each(|(name, value)| model.scope.set(name, value.clone()));
        let is_trained =
            |var: &Var| !model.program.root().vars.get(var).is_some_and(|desc| desc.stop_gradient);
        let trained = model.program.parameters().filter(is_trained);
        Ok(trained.map(|var| model.program.name(var).to_string()).collect())
    }

    /// The modules of a program whose weights are `[inputs, outputs]`.
    pub(crate) fn input_first_modules(&self, program: &Program) -> Vec<String> {
        let products = self.products(program).into_iter().filter(|product| product.is_input_first);
        products.map(|product| product.module).collect()
    }

    /// The products of the root block with weights of a target.
    fn products(&self, program: &Program) -> Vec<Product> {
        let product = |(at, op): (usize, &OpDesc)| {
            let (x, weights, out, is_input_first) = factors(op)?;
            let module = program.name(weights).strip_suffix(".weight")?.to_string();
            let is_target = self.is_target(&module);
            let desc = |var: Var| program.lookup(BlockId::ROOT, var);
            let (inputs, result) = (desc(x)?.dims.last()?.get()?, desc(out)?.clone());
            let outputs = result.dims.last()?.get()?;
            is_target.then_some(Product { at, module, x, out, inputs, outputs, is_input_first, result })
        };
        program.root().ops.iter().enumerate().filter_map(product).collect()
    }

    /// Puts the branch after each product, whose result gets another name.
    fn insert(&self, program: &mut Program, branches: &BTreeMap<usize, (Product, [Var; 2])>) {
        let ops = std::mem::take(&mut program.root_mut().ops);
        let mut extended = Vec::with_capacity(ops.len() + 4 * branches.len());
        for (at, mut op) in ops.into_iter().enumerate() {
            let Some((Product { module, x, out, result, .. }, [a, b])) = branches.get(&at) else {
                extended.push(op);
                continue;
            };
            let (rank, scale) = self.of_module(module);
            let mut part = |name: &str, last: Option<usize>| {
                let var = program.fresh(&format!("{module}.{name}"));
                let mut desc = result.clone();
                if let Some(last) = last {
                    desc.dims = desc.dims.iter().rev().skip(1).rev().copied().chain([last.into()]).collect();
                }
                program.root_mut().vars.insert(var, desc);
                var
            };
            let base = part("base", None);
            let [low, high, scaled] = [part("lora_A", Some(rank)), part("lora_B", None), part("lora", None)];
            let mut casts = vec![];
            let [a, b] = [a, b].map(|var| self::cast(program, *var, result.dtype, &mut casts));
            op.outputs.args_mut().filter(|var| **var == *out).for_each(|var| *var = base);
            let (site, origin) = (op.site, op.origin);
            let matmul = |x: Var, y: Var, out: Var| MatmulV2 { x, y, out, trans_x: false, trans_y: true };
            let branch: [OpDesc; 4] = [
                matmul(*x, a, low).into(),
                matmul(low, b, high).into(),
                Scale { x: high, out: scaled, scale, bias: 0.0, bias_after_scale: true }.into(),
                ElementwiseAdd { x: base, y: scaled, out: *out, axis: -1 }.into(),
            ];
            extended.push(op);
            extended.extend(casts.into_iter().chain(branch).map(|desc| OpDesc { site, origin, ..desc }));
        }
        program.root_mut().ops = extended;
    }
}

/// A parameter in the dtype of a product: an operator is added if it has another one.
fn cast(program: &mut Program, var: Var, dtype: DType, ops: &mut Vec<OpDesc>) -> Var {
    let Some(desc) = program.root().vars.get(&var).filter(|desc| desc.dtype != dtype).cloned() else {
        return var;
    };
    let converted = program.fresh(&format!("{}.cast", program.name(var)));
    program.root_mut().vars.insert(converted, VarDesc::new(dtype, desc.dims.clone()));
    ops.push(Cast { x: var, out: converted, in_dtype: desc.dtype, out_dtype: dtype }.into());
    converted
}

/// The left factor, the weights and the result of a product, and whether the weights are `[inputs, outputs]`.
fn factors(op: &OpDesc) -> Option<(Var, Var, Var, bool)> {
    if op.is::<MatmulV2>() {
        let MatmulV2 { x, y, out, trans_x, trans_y } = MatmulV2::from_desc(op).ok()?;
        return (!trans_x).then_some((x, y, out, !trans_y));
    }
    let QuantizedMatmul { x, codes, out, trans_y, .. } = QuantizedMatmul::from_desc(op).ok()?;
    Some((x, codes, out, !trans_y))
}
