//! Which modules of a program adapters are for.

use autobwd::{Error, ErrorKind, Program, Result};
use autobwd_ops::Model;
use fancy_regex::Regex;

use super::{Lora, factors};

impl Lora {
    /// Makes all products but the head targets, unless they are excluded or trained as a whole.
    #[cfg(feature = "tuning")]
    pub(crate) fn target_all(&mut self, model: &Model) {
        self.targets = linear_targets(model);
        let modules: Vec<String> =
            self.products(&model.program).into_iter().map(|product| product.module).collect();
        self.targets.retain(|target| modules.iter().any(|module| is_named(module, target)));
    }

    /// Whether a module has a branch; one that is trained as a whole has none.
    pub(super) fn is_target(&self, module: &str) -> bool {
        let own = |name: &String| is_named(module, name);
        let is_listed = self.targets.iter().any(own) && self.has_layer(module);
        let is_matched = self.pattern.as_ref().is_some_and(|pattern| is_matched(module, pattern));
        (is_listed || is_matched) && !self.excluded.iter().any(own) && !self.saves(module)
    }

    /// Whether a module is a part of one of the layers: the first number in its name, as in peft, where a layer of experts
    /// or of sublayers has numbers, too.
    fn has_layer(&self, module: &str) -> bool {
        let module = transformers_module(module);
        let parts: Vec<&str> = module.split('.').collect();
        let is_list = |at: usize| match self.layer_lists.as_slice() {
            // A list that is a part of a module.
            [] => at > 0,
            lists => lists.iter().any(|list| list == parts[at]),
        };
        let number = |at: usize| parts[at].parse::<usize>().ok().filter(|_| is_list(at - 1));
        let found = (1..parts.len().saturating_sub(1)).find_map(number);
        self.layers.is_empty() || found.is_some_and(|layer| self.layers.contains(&layer))
    }

    /// # Errors
    /// A regular expression that is none; a dropout that is no probability below 1.
    pub(crate) fn check(&self) -> Result<()> {
        let ends = self.ranks.iter().map(|(name, _)| name).chain(self.alphas.iter().map(|(name, _)| name));
        for pattern in self.pattern.iter().chain(ends) {
            Regex::new(pattern).map_err(|e| {
                let text = format!("`{pattern}` is no regular expression: {e}");
                Error::new(ErrorKind::Attr, text).caused_by(e)
            })?;
        }
        if !(0.0..1.0).contains(&(self.dropout as f32)) {
            let text =
                format!("the dropout of adapters is {}, not a number from 0 and below 1", self.dropout);
            return Err(Error::new(ErrorKind::Attr, text));
        }
        Ok(())
    }
}

/// Whether a regular expression matches the whole name of a module, as the function for whole matches of Python does.
fn is_matched(module: &str, pattern: &str) -> bool {
    let whole = Regex::new(&format!(r"\A(?:{pattern})\z"));
    whole.is_ok_and(|whole| {
        [module, &transformers_module(module)].iter().any(|name| whole.is_match(name).unwrap_or(false))
    })
}

/// Whether a regular expression matches a module's name, or its last parts.
pub(super) fn ends_with_match(module: &str, pattern: &str) -> bool {
    is_matched(module, &format!(r"(?:.*\.)?(?:{pattern})"))
}

/// The last parts of the names of all modules with a product, but the one that computes the output `logits`: the targets
/// that peft calls `all-linear`.
///
/// ```
/// use autobwd_models::{Pretrained, linear_targets};
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen2");
/// let model = Pretrained::open(folder).load()?;
/// let all = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
/// assert_eq!(linear_targets(&model), all);
/// # Ok::<(), autobwd::Error>(())
/// ```
pub fn linear_targets(model: &Model) -> Vec<String> {
    let program = &model.program;
    let head = head(program);
    let products = program.root().ops.iter().filter_map(factors);
    let modules = products.filter_map(|(_, weights, ..)| program.name(weights).strip_suffix(".weight"));
    let mut targets: Vec<String> = vec![];
    for module in modules.filter(|module| head != Some(module)) {
        let target = module.rsplit('.').next().unwrap_or(module);
        // A part of a name that the head has, too, is not enough.
        let target = if head.is_some_and(|head| is_named(head, target)) { module } else { target };
        if !targets.iter().any(|known| known == target) {
            targets.push(target.into());
        }
    }
    targets
}

/// The module whose product becomes the output `logits`, by a bias or functions of each element.
pub(crate) fn head(program: &Program) -> Option<&str> {
    let logits = program.signature().outputs.iter().find(|entry| entry.name == "logits")?;
    let mut var = program.find(&logits.variable)?;
    for op in program.root().ops.iter().rev() {
        if op.writes().any(|written| written == var) {
            if let Some((_, weights, ..)) = factors(op) {
                return program.name(weights).strip_suffix(".weight");
            }
            var = op.reads().next()?;
        }
    }
    None
}

/// Whether a module has a name, or its last parts are that name.
pub(crate) fn is_named(module: &str, name: &str) -> bool {
    let own = |module: &str| {
        let rest = module.strip_suffix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    own(module) || own(&transformers_module(module))
}

/// The name of a module in transformers; of ViT, files have other names than modules since version 5.
pub(crate) fn transformers_module(module: &str) -> String {
    let Some(rest) = module.strip_prefix("vit.encoder.layer.") else { return module.into() };
    let Some((number, part)) = rest.split_once('.') else { return module.into() };
    let part = match part {
        "attention.attention.query" => "attention.q_proj",
        "attention.attention.key" => "attention.k_proj",
        "attention.attention.value" => "attention.v_proj",
        "attention.output.dense" => "attention.o_proj",
        "intermediate.dense" => "mlp.fc1",
        "output.dense" => "mlp.fc2",
        other => other,
    };
    format!("vit.layers.{number}.{part}")
}
