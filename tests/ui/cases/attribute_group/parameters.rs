use autobwd::Attrs;

#[derive(Attrs, Clone, Debug)]
pub struct Window<T> {
    #[attr]
    pub size: T,
}

fn main() {}
