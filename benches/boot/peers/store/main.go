// store LISTEN FOLDER: serves the files of a folder, and parts of them, by HTTP, like an object store to which a
// registry redirects.
package main

import (
	"log"
	"net/http"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("store LISTEN FOLDER")
	}
	log.Fatal(http.ListenAndServe(os.Args[1], http.FileServer(http.Dir(os.Args[2]))))
}
