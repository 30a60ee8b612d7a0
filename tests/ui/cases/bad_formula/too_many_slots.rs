use autobwd::{Float, NoGrad, Pointwise, Var, register_op};

macro_rules! operator {
    ($name:ident: $($input:ident)*) => {
        #[register_op(grad = NoGrad, pointwise)]
        pub struct $name<V = Var> {
            $(#[input] pub $input: V,)*
            #[output]
            pub out: V,
        }
        impl<F: Float> Pointwise for $name<F> {
            fn eval(&mut self) {
                self.out = F::from(0.0) $(+ self.$input)*;
            }
        }
    };
}
operator!(Sum: a b c d e f g h i j k l m n o p);

fn main() {}
