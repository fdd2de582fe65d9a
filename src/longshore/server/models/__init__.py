"""What is said over HTTP: the shapes of requests and answers, apart from the routes that use them."""
