use autobwd::Attrs;

#[derive(Attrs, Clone)]
pub struct Window<T> {
    #[attr]
    pub size: T,
}

fn main() {}
