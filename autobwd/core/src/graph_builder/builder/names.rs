//! Name scopes, names of layers, and evaluation mode.

use super::Builder;
use crate::{
    desc::check_name,
    graph_builder::guards::{NameScopeGuard, Setting},
};

impl Builder {
    /// Calls `body` in a name scope: the names of layers in it start with `name` and a dot. Scopes nest. The parameters
    /// of a layer therefore keep their names when other parts of the model change.
    ///
    /// Parameters that a model declares itself have the names it gives them: [`scoped`](Builder::scoped) adds the scope.
    /// A scope may be entered again; its layers are counted on. The builder fails for a name that no variable can have.
    ///
    /// ```
    /// # use autobwd::Builder;
    /// use autobwd_ops::nn::Linear;
    /// let net = Builder::new();
    /// let layers = net.name_scope("encoder", || {
    ///     [Linear::builder(&net, 8, 8).build(), Linear::builder(&net, 8, 4).name("out").build()]
    /// });
    /// assert_eq!(layers[0].weight.name(), "encoder.linear_0.w");
    /// assert_eq!(layers[1].weight.name(), "encoder.out.w");
    /// ```
    #[track_caller]
    pub fn name_scope<T>(&self, name: &str, body: impl FnOnce() -> T) -> T {
        if let Err(e) = check_name(name) {
            drop(self.failed(e));
        }
        let _guard = self.set_name_scope(format!("{}.", self.scoped(name)));
        body()
    }

    /// Replaces the current [`name_scope`](Builder::name_scope) until the guard is dropped: names get this prefix
    /// alone, which ends with a dot or is empty.
    pub fn set_name_scope(&self, prefix: String) -> NameScopeGuard {
        NameScopeGuard::new(self, prefix)
    }

    /// The prefixes that guards give to names.
    pub(in crate::graph_builder) fn name_scopes(&self) -> &Setting<String> {
        &self.0.name_scopes
    }

    /// The name within the current [`name_scope`](Builder::name_scope): `encoder.w` for `w` in the scope `encoder`.
    pub fn scoped(&self, name: &str) -> String {
        self.0.name_scopes.innermost().unwrap_or_default() + name
    }

    /// A name for a layer in the current [`name_scope`](Builder::name_scope), whose variables are called `name.part`:
    /// `prefix_0`, `prefix_1`, …, counted separately for each prefix. So parameters have the same names in a program
    /// and in eager mode, whatever was computed before.
    pub fn layer_name(&self, prefix: &str) -> String {
        let prefix = self.scoped(prefix);
        let layers = &mut self.0.layers.borrow_mut();
        let count = layers.entry(prefix.clone()).or_insert(0);
        *count += 1;
        format!("{prefix}_{}", *count - 1)
    }

    /// Calls `body` in evaluation mode, in which the layers that behave differently in training do what they do at
    /// inference: `Dropout` passes its input on, and `BatchNorm` uses its running statistics. Parameters are the same.
    ///
    /// ```
    /// # use autobwd::{Builder, DType};
    /// use autobwd_ops::nn::Dropout;
    /// let net = Builder::new();
    /// let (x, dropout) = (net.input("x", DType::F32, &[-1, 8]), Dropout::new(&net, 0.1, 7));
    /// assert!(net.eval_mode(|| dropout.forward(&x)).is(&x));
    /// assert!(!dropout.forward(&x).is(&x));
    /// ```
    pub fn eval_mode<T>(&self, body: impl FnOnce() -> T) -> T {
        struct EvalModeGuard<'a>(&'a Builder, bool);
        impl Drop for EvalModeGuard<'_> {
            fn drop(&mut self) {
                self.0.0.eval_mode.set(self.1);
            }
        }
        let _guard = EvalModeGuard(self, self.0.eval_mode.replace(true));
        body()
    }

    /// Whether layers are called in [`eval_mode`](Builder::eval_mode).
    pub fn is_eval_mode(&self) -> bool {
        self.0.eval_mode.get()
    }

    /// A name that is new to the program: `prefix_0`, `prefix_1`, ….
    pub fn unique(&self, prefix: &str) -> String {
        self.change(|program| {
            let var = program.fresh(prefix);
            program.name(var).to_string()
        })
    }
}
