use autobwd::{op::{Arity, Slot}, Result, Var};

pub struct Logged<V>(Vec<V>);
impl<V> Drop for Logged<V> {
    fn drop(&mut self) {
        println!("{} are gone", self.0.len());
    }
}
impl<V> Slot<V> for Logged<V> {
    const ARITY: Arity = Arity::Many;
    type Of<W> = Logged<W>;

    fn fill(vars: &[Var], fill: impl FnMut(Var) -> Result<V>) -> Result<Self> {
        vars.iter().copied().map(fill).collect::<Result<_>>().map(Logged)
    }
    fn take(mut self, put: impl FnMut(Option<V>)) {
        std::mem::take(&mut self.0).into_iter().map(Some).for_each(put)
    }
    fn map<W>(&self, f: impl FnMut(&V) -> W) -> Logged<W> {
        Logged(self.0.iter().map(f).collect())
    }
    fn each(&self, f: impl FnMut(&V)) {
        self.0.iter().for_each(f)
    }
    fn at(&self, position: usize) -> Option<&V> {
        self.0.get(position)
    }
}

fn main() {}
